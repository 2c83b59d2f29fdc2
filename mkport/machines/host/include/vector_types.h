// Names that names.h has already.
#pragma once
