# Rows of a table by index: embeddings.
op gather_rows
  size R M >= 0
  size V >= 1
  bench "R=2048,M=768,V=50280"
  table  in   parameter   float  (V,M)
  index  in   index       i32    (R)    rows V
  out    out  activation  float  (R,M)
