mkport new half_of --ops out/ops
mkport check half_of --ops out/ops --form standalone --dtype f32
