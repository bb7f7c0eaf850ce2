# The argmax of each row.
op argmax_rows
  size R >= 0
  size M >= 1
  bench "R=1,M=50280"
  x    in   activation  float  (R,M)
  out  out  index       i32    (R)    exact
