# expect: error
add = 3
