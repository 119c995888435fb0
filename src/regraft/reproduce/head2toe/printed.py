"""Numbers as the paper prints them, for the rows that check its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TABLE3", "TEXT_FRACTIONS", "Printed"]

TEXT_FRACTIONS: tuple[float, ...] = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""The fractions of appendix A; Table 2 also has 0.2."""


@dataclass(frozen=True)
class Printed:
    """A line of Table 3."""

    task: str
    fraction: float
    width: int
    classes: int
    size_over_linear: float


TABLE3: tuple[Printed, ...] = (
    Printed("Caltech101", 0.010, 467688, 102, 2.353167),
    Printed("CIFAR-100", 0.200, 30440, 100, 2.977301),
    Printed("Clevr-Dist", 0.001, 467688, 6, 1.417419),
    Printed("Clevr-Count", 0.005, 30440, 8, 0.132278),
    Printed("Retinopathy", 0.200, 467688, 5, 47.099634),
    Printed("DMLab", 0.020, 467688, 6, 5.756287),
    Printed("dSpr-Orient", 0.200, 30440, 16, 3.001686),
    Printed("dSpr-Loc", 0.005, 467688, 16, 1.587624),
    Printed("DTD", 0.005, 1696552, 47, 4.692396),
    Printed("EuroSAT", 0.100, 30440, 10, 1.532776),
    Printed("KITTI-Dist", 0.020, 467688, 4, 6.350983),
    Printed("Flowers102", 0.100, 30440, 102, 1.490882),
    Printed("Pets", 0.002, 467688, 37, 0.649417),
    Printed("Camelyon", 0.020, 30440, 2, 0.529114),
    Printed("Resisc45", 0.020, 467688, 45, 4.725480),
    Printed("sNORB-Azim", 0.002, 1696552, 18, 3.094923),
    Printed("sNORB-Elev", 0.050, 467688, 9, 12.210897),
    Printed("Sun397", 0.100, 30440, 397, 1.487498),
    Printed("SVHN", 0.005, 1696552, 10, 6.730334),
)
