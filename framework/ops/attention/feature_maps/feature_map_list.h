#pragma once
/// The list of feature maps, in the order of help texts. The enumeration, the table, the dispatch on each device, the
/// names in configs and the tests follow it. X(NAME) stands for maps/NAME-inl.h, which defines the whole map. To add a
/// map, write that file and add its line here. CMake reads this list too and generates feature_map_files.h, which
/// includes those files.
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
