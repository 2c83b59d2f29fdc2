"""Headers are found for a file that includes some, as a GPU compiles it."""

from mkport.machines.cuda.headers import folders_for, include_folders


def test_only_a_text_with_includes_is_given_folders() -> None:
    assert folders_for('// #include <cuda_fp16.h>\n#include "device.cuh"\n') == ()
    assert folders_for("#define X\n  # include <cuda_fp16.h>\n") == include_folders()
