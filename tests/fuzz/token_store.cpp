// A tokenized dataset. The checksums of HDF5's metadata are not recomputed: with valid ones, one in 60 datasets or
// checkpoints with changed bytes crashes libhdf5 1.10.8, which would end the run of this target.
#include "datasets/tokenized_dataset.h"

#include "tests/fuzz/target.h"

namespace fuzzing = furlong::fuzzing;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string path = fuzzing::write_input("tokens.h5", fuzzing::text_of(data, size));
  fuzzing::succeeds([&] {
    const furlong::TokenizedDataset store = furlong::TokenizedDataset::open(path);
    for (const furlong::Split split : furlong::all_splits) {
      const std::size_t count = std::min<std::uint64_t>(store.size(split), 1 << 16);
      fuzzing::succeeds([&] { store.read(split, store.size(split) - count, count); });
      store.breaks(split, 0, store.size(split));
    }
    fuzzing::succeeds([&] { store.document_offsets(); });
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(store.n_documents(), 64); ++i)
      fuzzing::succeeds([&] { store.document(i); });
    fuzzing::succeeds([&] {
      if (store.documents_per_label() == 0) return;
      store.label_kind() == furlong::LabelKind::numbers ? void(store.label_numbers()) : void(store.labels());
    });
  });
  return 0;
}
