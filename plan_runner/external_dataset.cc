// ExternalDataset, the platform's operation with which a client graph reads its device's examples.
//
// On a device, the token identifies the source of the examples. Here the token contains the
// examples, so that a graph cannot access other data, even if it creates its own tokens. A token
// consists of the bytes "plan_runner examples:", then each example's size (8 bytes, little endian)
// and bytes, and a final ".", because some conversions drop zeros at the end of a string.
// plan_runner/kernel.py builds this file.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace plan_runner {
namespace {

namespace data = tensorflow::data;
using tensorflow::OkStatus;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::tstring;
namespace errors = tensorflow::errors;

constexpr absl::string_view kHeading = "plan_runner examples:";

Status ReadToken(absl::string_view token, std::vector<tstring>* examples) {
  if (!absl::ConsumePrefix(&token, kHeading) || !absl::ConsumeSuffix(&token, ".")) {
    return errors::InvalidArgument("ExternalDataset: expected a token with examples");
  }
  while (!token.empty()) {
    uint64_t size = 0;
    if (token.size() < sizeof(size)) {
      return errors::InvalidArgument("ExternalDataset: the token ends within a size");
    }
    std::memcpy(&size, token.data(), sizeof(size));
    token.remove_prefix(sizeof(size));
    if (token.size() < size) {
      return errors::InvalidArgument("ExternalDataset: the token ends within an example");
    }
    examples->emplace_back(token.data(), size);
    token.remove_prefix(size);
  }
  return OkStatus();
}

class Dataset : public data::DatasetBase {
 public:
  Dataset(tensorflow::OpKernelContext* context, std::vector<tstring> examples)
      : DatasetBase(data::DatasetContext(context)),
        examples_(std::move(examples)),
        dtypes_({tensorflow::DT_STRING}),
        shapes_({tensorflow::PartialTensorShape({})}) {}

  const tensorflow::DataTypeVector& output_dtypes() const override { return dtypes_; }
  const std::vector<tensorflow::PartialTensorShape>& output_shapes() const override {
    return shapes_;
  }
  std::string DebugString() const override { return "ExternalDataset"; }
  Status InputDatasets(std::vector<const DatasetBase*>* inputs) const override {
    return OkStatus();
  }
  Status CheckExternalState() const override { return OkStatus(); }
  int64_t CardinalityInternal(data::CardinalityOptions options) const override {
    return examples_.size();
  }

 protected:
  std::unique_ptr<data::IteratorBase> MakeIteratorInternal(
      const std::string& prefix) const override {
    return std::make_unique<Iterator>(Iterator::Params{this, prefix + "::ExternalDataset"});
  }
  Status AsGraphDefInternal(data::SerializationContext* context, DatasetGraphDefBuilder* builder,
                            tensorflow::Node** node) const override {
    return errors::Unimplemented("ExternalDataset is not written to graphs");
  }

 private:
  class Iterator : public data::DatasetIterator<Dataset> {
   public:
    explicit Iterator(const Params& params) : data::DatasetIterator<Dataset>(params) {}

   protected:
    Status GetNextInternal(data::IteratorContext* context, std::vector<Tensor>* out,
                           bool* end_of_sequence) override {
      const size_t position = next_++;
      *end_of_sequence = position >= dataset()->examples_.size();
      if (!*end_of_sequence) out->emplace_back(dataset()->examples_[position]);
      return OkStatus();
    }
    Status SaveInternal(data::SerializationContext* context,
                        data::IteratorStateWriter* writer) override {
      return errors::Unimplemented("ExternalDataset is not saved");
    }
    Status RestoreInternal(data::IteratorContext* context,
                           data::IteratorStateReader* reader) override {
      return errors::Unimplemented("ExternalDataset is not restored");
    }

   private:
    std::atomic<size_t> next_{0};
  };

  const std::vector<tstring> examples_;
  const tensorflow::DataTypeVector dtypes_;
  const std::vector<tensorflow::PartialTensorShape> shapes_;
};

class Kernel : public data::DatasetOpKernel {
 public:
  using data::DatasetOpKernel::DatasetOpKernel;

 protected:
  void MakeDataset(tensorflow::OpKernelContext* context, data::DatasetBase** output) override {
    tstring token;
    OP_REQUIRES_OK(context, data::ParseScalarArgument<tstring>(context, "token", &token));
    std::vector<tstring> examples;
    OP_REQUIRES_OK(context, ReadToken(token, &examples));
    *output = new Dataset(context, std::move(examples));
  }
};

REGISTER_OP("ExternalDataset")
    .Input("token: string")
    .Input("selector: string")
    .Output("handle: variant")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

// This kernel has priority over the empty kernel that TFLite's converter registers for the op.
REGISTER_KERNEL_BUILDER(Name("ExternalDataset").Device(tensorflow::DEVICE_CPU).Priority(1), Kernel);

}  // namespace
}  // namespace plan_runner
