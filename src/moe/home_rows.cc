#include "moe/home_rows.h"

#include "kernels/elementwise.h"

namespace plait::moe {

void HomeRows::terms(const LayerState& state, int64_t token, bool weighted, std::vector<TreeTerm>& terms) const {
  terms.clear();
  if (parcels) return parcel_terms(state, token, weighted, terms);
  const int64_t k = state.ids.view.shape[1];
  for (int64_t i = token * k; i < (token + 1) * k; ++i) {
    const int32_t position = state.position.as<int32_t>()[i];
    const float weight = state.weights.as<float>()[i];
    if (position < 0 || kernels::is_absent(weight)) continue;
    terms.push_back(
        {.expert = state.ids.as<int32_t>()[i], .row = rows.view.at(position), .type = rows.view.dtype, .weighted = weighted, .weight = weight});
  }
}

/// Sums have their weights in them already.
void HomeRows::parcel_terms(const LayerState& state, int64_t token, bool weighted, std::vector<TreeTerm>& terms) const {
  for (const Parcel& parcel : parcels->of_token(token)) {
    const TensorView& from = parcel.is_sum ? sums.view : rows.view;
    TreeTerm term{.expert = parcel.expert, .row = from.at(parcel.place), .type = from.dtype};
    if (!parcel.is_sum) {
      term.weighted = weighted;
      term.weight = state.weights.as<float>()[parcels->entries(parcel).front()];
    }
    terms.push_back(term);
  }
}

}  // namespace plait::moe
