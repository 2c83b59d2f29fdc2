// Stands in cub.cuh.
#pragma once
#include "../cub.cuh"
