#include "plait/alltoallv_gmm.h"

#include <memory>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include "arrays.h"
#include "bindings.h"
#include "contexts.h"
#include "group.h"

namespace nb = nanobind;

namespace plait::python {
namespace {

/// `home`: grouped_matmul_alltoallv, else alltoallv_grouped_matmul. Returns y, shared_y, permuted; None where not asked for.
nb::tuple forward(const std::shared_ptr<RankGroup>& group, bool home, const Input& x, const Input& weight, const Input& send_counts,
                  const Input& recv_counts, const OptionalInput& bias, const OptionalInput& shared_x, const OptionalInput& shared_weight,
                  bool trans_weight, bool trans_shared_weight, bool return_permuted, bool fused) {
  const std::vector<int64_t> send = integers_of("send_counts", send_counts), recv = integers_of("recv_counts", recv_counts);
  const ConstTensorView x_view = view_of("x", x), weight_view = view_of("weight", weight);
  const AllToAllVGmmOptions options{.bias = view_of("bias", bias),
                                    .shared_x = view_of("shared_x", shared_x),
                                    .shared_weight = view_of("shared_weight", shared_weight),
                                    .trans_weight = trans_weight,
                                    .trans_shared_weight = trans_shared_weight,
                                    .return_permuted = return_permuted,
                                    .fused = fused};
  const auto call = home ? &grouped_matmul_alltoallv : &alltoallv_grouped_matmul;
  const std::string operation = home ? "grouped_matmul_alltoallv" : "alltoallv_grouped_matmul";
  const AllToAllVGmmResult result = call_together(*group, operation, [&] {  //
    return call(*group->context, *group->group, x_view, weight_view, send, recv, options);
  });
  return nb::make_tuple(array_of(result.y, group), array_of(result.shared_y, group), array_of(result.permuted, group));
}

/// `rows` is what the weight's gradient needs of forward: the permuted rows, or x with `home`. Returns dx and dshared_x or None.
nb::tuple backward(const std::shared_ptr<RankGroup>& group, bool home, const Input& dy, const OptionalInput& dshared_y, const OptionalInput& rows,
                   const Input& weight, const Input& send_counts, const Input& recv_counts, const OptionalInput& shared_x,
                   const OptionalInput& shared_weight, bool trans_weight, bool trans_shared_weight, bool fused, const OptionalOutput& dweight,
                   const OptionalOutput& dbias, const OptionalOutput& dshared_weight) {
  const std::vector<int64_t> send = integers_of("send_counts", send_counts), recv = integers_of("recv_counts", recv_counts);
  const AllToAllVGmmUpstream upstream{view_of("dy", dy), view_of("dshared_y", dshared_y)};
  const ConstTensorView rows_view = view_of("rows", rows), weight_view = view_of("weight", weight);
  const AllToAllVGmmGradients gradients{view_of("dweight", dweight), view_of("dbias", dbias), view_of("dshared_weight", dshared_weight)};
  const AllToAllVGmmOptions options{.shared_x = view_of("shared_x", shared_x),
                                    .shared_weight = view_of("shared_weight", shared_weight),
                                    .trans_weight = trans_weight,
                                    .trans_shared_weight = trans_shared_weight,
                                    .fused = fused};
  const auto call = home ? &grouped_matmul_alltoallv_backward : &alltoallv_grouped_matmul_backward;
  const std::string operation = home ? "grouped_matmul_alltoallv_backward" : "alltoallv_grouped_matmul_backward";
  const AllToAllVGmmInputGradients result = call_together(
      *group, operation, [&] { return call(*group->context, *group->group, upstream, rows_view, weight_view, send, recv, gradients, options); });
  return nb::make_tuple(array_of(result.dx, group), array_of(result.dshared_x, group));
}

}  // namespace

void bind_alltoallv_gmm(nb::module_& module) {
  module.def("alltoallv_gmm", &forward, nb::arg("group"), nb::arg("home"), nb::arg("x"), nb::arg("weight"), nb::arg("send_counts"),
             nb::arg("recv_counts"), nb::arg("bias").none(), nb::arg("shared_x").none(), nb::arg("shared_weight").none(), nb::arg("trans_weight"),
             nb::arg("trans_shared_weight"), nb::arg("return_permuted"), nb::arg("fused"));
  module.def("alltoallv_gmm_backward", &backward, nb::arg("group"), nb::arg("home"), nb::arg("dy"), nb::arg("dshared_y").none(),
             nb::arg("rows").none(), nb::arg("weight"), nb::arg("send_counts"), nb::arg("recv_counts"), nb::arg("shared_x").none(),
             nb::arg("shared_weight").none(), nb::arg("trans_weight"), nb::arg("trans_shared_weight"), nb::arg("fused"), nb::arg("dweight").none(),
             nb::arg("dbias").none(), nb::arg("dshared_weight").none());
}

}  // namespace plait::python
