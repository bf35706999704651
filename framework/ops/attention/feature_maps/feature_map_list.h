#pragma once
/// The list of feature maps, in the order of help texts: the enumeration, the table, the dispatch of every engine, the
/// names in settings and the tests follow it. X(NAME) stands for maps/NAME-inl.h, which holds all that the map is. To
/// add a map, write that file and add its line here. CMake reads the list as well: it generates the includes of those
/// files, feature_map_files.h.
#define FURLONG_FEATURE_MAPS(X) \
  X(elu1)                       \
  X(relu)                       \
  X(exp)                        \
  X(favor_positive)             \
  X(favor_hyperbolic)           \
  X(favor_trig)                 \
  X(favor_relu)                 \
  X(taylor)                     \
  X(limit)                      \
  X(cosine)                     \
  X(oprf)                       \
  X(hedgehog)
