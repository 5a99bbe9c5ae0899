"""Sizes of results, for PyTorch and NumPy alike."""


def num_kept_rows(total: int, num_out_rows: int) -> int:
    """Rows kept of `total`: 0 = all, n > 0 the first n, n < 0 all but the last -n."""
    if num_out_rows == 0:
        return total
    return min(num_out_rows, total) if num_out_rows > 0 else max(total + num_out_rows, 0)
