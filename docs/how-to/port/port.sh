mkport port docs/gallery/kernels/tiled_gemm.cu --no-run --out out/ops
mkport list --ops out/ops
