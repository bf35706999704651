// Only carries the precompiled header that the libraries share (CMakeLists.txt).
