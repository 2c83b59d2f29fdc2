"""A bfloat16 GGUF of the demo model: its own metadata, its tensors dequantised and rounded.

llama.cpp thereby runs on exactly the numbers that the converted directory holds.
"""

import os
from pathlib import Path

import gguf

from mkport.cache import cache_dir
from mkport.declare.case import from_bf16, to_bf16


def bf16_gguf(source: Path) -> Path:
    """The bfloat16 form of a GGUF file, made once in the cache."""
    stat = source.stat()
    out = cache_dir("bench") / f"{source.stem}-{stat.st_size}-{int(stat.st_mtime)}-bf16.gguf"
    if out.is_file():
        return out
    reader = gguf.GGUFReader(source)
    temporary = out.with_suffix(f".{os.getpid()}.tmp")
    writer = gguf.GGUFWriter(temporary, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = field.contents()
        if key == "general.file_type":
            value = int(gguf.LlamaFileType.MOSTLY_BF16)
        writer.add_key_value(key, value, kind, sub_type=element)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if len(tensor.shape) == 1:
            values = from_bf16(to_bf16(values))  # llama.cpp wants norm weights in float32
            writer.add_tensor(tensor.name, values)
        else:
            raw = to_bf16(values).view("uint8")
            writer.add_tensor(tensor.name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(temporary, out)
    return out
