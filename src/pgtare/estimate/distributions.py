"""Probabilities and quantiles of the usual distributions; scipy would take 126 MB for them.

Student's t, the binomial and the beta distribution come from the regularised incomplete beta
function, chi-square from the incomplete gamma function, each by a continued fraction or a series
(Didonato and Morris, ACM TOMS 1992). What stands before them is taken from deviances and Stirling's
error, so that it does not lose digits to large logarithms (Loader, "Fast and accurate computation
of binomial probabilities", 2000). NaN in gives NaN out. Tests hold all of it against scipy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from pgtare.estimate.arrays import Floats

_EPSILON = 1e-16
#: Terms at most, which only parameters of many millions need.
_TERMS = 100_000
#: Steps of Newton's method at most; a quantile takes three to six.
_STEPS = 200
#: Student's t with more degrees of freedom is the normal to ten digits, as far as it can be told.
_NORMAL = 1e17
#: Beyond this multiple of the root of its degrees of freedom, Student's tail is a power of t.
_POWER_LAW = 1e18
#: The largest logarithm of a float.
_LARGEST = 709.0
_STANDARD = NormalDist()
_HALF_LOG_TAU = 0.5 * math.log(math.tau)


def normal_below(z: float) -> float:
    """P(Z ≤ z) of the standard normal."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


def normals_below(z: Floats) -> Floats:
    """The same of an array."""
    return 0.5 * np.asarray(_erfc(-z / math.sqrt(2)), np.float64)


_erfc = np.frompyfunc(math.erfc, 1, 1)


def normal_quantile(p: float) -> float:
    """The z with P(Z ≤ z) = p; infinite at 0 and 1, NaN outside of them."""
    if 0 < p < 1:
        return _STANDARD.inv_cdf(p)
    if p in (0, 1):
        return math.inf if p else -math.inf
    return math.nan


def student_below(df: float, t: float) -> float:
    """P(T ≤ t) of Student's t; df: degrees of freedom, above 0, also infinite."""
    if math.isnan(t) or not df > 0:
        return math.nan
    if df > _NORMAL:
        return normal_below(t)
    if abs(t) < 1e-150:  # whose square is nothing
        return 0.5
    if math.isinf(t):
        return 0.0 if t < 0 else 1.0
    log_tail, _ = _student_logs(df, abs(t))
    tail = 0.5 * math.exp(log_tail)
    return tail if t < 0 else 1 - tail


@lru_cache(maxsize=4096)
def student_quantile(df: float, p: float) -> float:
    """The t with P(T ≤ t) = p of Student's t; df and p as in the others."""
    if not df > 0 or not 0 <= p <= 1:
        return math.nan
    if df > _NORMAL or p in (0, 1):
        return normal_quantile(p)
    if p == 0.5:
        return 0.0
    tail = min(p, 1 - p)
    # of P(|T| > t) and P(|T| < t) the smaller one, which has the digits
    wanted, which = (2 * tail, 0) if tail < 0.25 else (1 - 2 * tail, 1)

    def logs(u: float) -> tuple[float, float]:
        t = math.exp(u)
        found = _student_logs(df, t)
        # d P / du of both, up to the sign
        slope = math.exp(math.log(2) + u + _student_log_density(df, t) - found[which])
        return found[which], slope if which else -slope

    t = _exp(_newton(logs, math.log(wanted), math.log(_student_start(df, tail))))
    return t if p > 0.5 else -t


def _student_start(df: float, tail: float) -> float:
    """A quantile to begin with: by Hill (CACM 1970) if the tail is like the normal's."""
    if df >= 3 and math.log(tail) > -2 * df:
        a = df - 0.5
        normal = -normal_quantile(tail)
        near = normal * (1 - (normal * normal + 3) / (48 * a * a))
        return math.sqrt(df * math.expm1(near * near / a))
    cauchy = 1 / math.tan(math.pi * tail)
    return cauchy ** (1 / df) if df > 1 and tail < 0.25 else cauchy


def _student_logs(df: float, t: float) -> tuple[float, float]:
    """Logarithms of P(|T| > t) and P(|T| < t); t > 0."""
    ratio = t / math.sqrt(df)
    if ratio > _POWER_LAW:
        log_tail = -df * math.log(ratio) - math.log(df / 2) - _log_beta_half(df / 2)
        return log_tail, _log_complement(log_tail)
    total = df + t * t
    # the distance of x from its mean times a + b, which is small where the two nearly agree
    distance = 0.5 * (df / total) * (1 - t * t)
    return _beta_logs(df / 2, 0.5, df / total, t * t / total, distance)


def _student_log_density(df: float, t: float) -> float:
    a = df / 2
    ratio = t / math.sqrt(df)
    power = 2 * math.log(ratio) if ratio > 1e100 else math.log1p(ratio * ratio)
    return -(a + 0.5) * power - 0.5 * math.log(df) - _log_beta_half(a)


def _log_beta_half(a: float) -> float:
    """log B(a, ½)."""
    if a < 50:
        return math.lgamma(a) + math.lgamma(0.5) - math.lgamma(a + 0.5)
    error = _stirling_error(a) - _stirling_error(a + 0.5)
    return 0.5 * math.log(math.pi / a) - a * math.log1p(0.5 / a) + 0.5 + error


def binomial_at_most(hits: int, trials: int, share: float) -> float:
    """P(X ≤ hits) of a binomial number of hits among so many trials."""
    if math.isnan(share) or hits >= trials:
        return share if math.isnan(share) else 1.0
    return beta_below(trials - hits, hits + 1, 1 - share)


def binomial_at_least(hits: int, trials: int, share: float) -> float:
    """P(X ≥ hits)."""
    if math.isnan(share) or hits <= 0:
        return share if math.isnan(share) else 1.0
    return beta_below(hits, trials - hits + 1, share)


def beta_below(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b); a and b above 0."""
    if not (a > 0 and b > 0 and 0 <= x <= 1):
        return math.nan
    if x in (0, 1):
        return float(x)
    return math.exp(_beta_logs(a, b, x, 1 - x, x * b - (1 - x) * a)[0])


def chi_square_above(df: float, x: float) -> float:
    """P(X > x) of chi-square."""
    if not df > 0 or math.isnan(x):
        return math.nan
    half = x / 2
    if half <= 0:  # also if it is too small for a float
        return 1.0
    return math.exp(_gamma_logs(df / 2, half)[1]) if math.isfinite(x) else 0.0


def chi_square_exceeded(df: float, p: float) -> float:
    """The x with P(X > x) = p of chi-square."""
    if not (df > 0 and 0 <= p <= 1):
        return math.nan
    if p in (0, 1):
        return math.inf if p == 0 else 0.0
    wanted, which = (1 - p, 0) if p > 0.5 else (p, 1)
    a = df / 2

    def logs(u: float) -> tuple[float, float]:
        x = math.exp(u)
        found = _gamma_logs(a, x)[which]
        slope = math.exp(_gamma_log_power(a, x) - found)
        return found, slope if not which else -slope

    # by Wilson and Hilferty; small ones are a power of the probability
    cube = 1 - 1 / (9 * a) - normal_quantile(p) / (3 * math.sqrt(a))
    start = math.log(a) + 3 * math.log(cube) if cube > 0.2 else -math.inf
    if start == -math.inf:
        start = (math.log(wanted) + math.lgamma(a + 1)) / a if not which else math.log(a)
    return 2 * _exp(_newton(logs, math.log(wanted), start))


def digamma(x: Floats) -> Floats:
    """The logarithmic derivative of the gamma function of numbers above 0."""
    shifted, value = np.array(x, np.float64), np.zeros(np.shape(x))
    while np.any(small := shifted < 10):
        value -= np.where(small, 1 / shifted, 0.0)
        shifted += small
    square = 1 / shifted**2
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (
        1 / 240 - square * (1 / 132 - square * (691 / 32760 - square / 12))))))  # fmt: skip
    return np.asarray(value + np.log(shifted) - 0.5 / shifted - series, np.float64)


def trigamma(x: Floats) -> Floats:
    """The derivative of digamma of numbers above 0."""
    shifted, value = np.array(x, np.float64), np.zeros(np.shape(x))
    while np.any(small := shifted < 10):
        value += np.where(small, 1 / shifted**2, 0.0)
        shifted += small
    square = 1 / shifted**2
    series = square * (1 / 6 - square * (1 / 30 - square * (1 / 42 - square * (
        1 / 30 - square * (5 / 66 - square * (691 / 2730 - square * 7 / 6))))))  # fmt: skip
    return np.asarray(value + (1 + 0.5 / shifted + series) / shifted, np.float64)


def _newton(logs: Callable[[float], tuple[float, float]], target: float, start: float) -> float:
    """Where the logarithm of a probability is `target`. logs: it and its slope at a place.

    In the logarithm or logit of the variable all these densities are log-concave, and so are their
    tails: a tangent lies above the curve. So from wherever it begins, Newton's method is on one
    side of the root after its first step, comes nearer with each, and never passes it.
    """
    place = max(-_LARGEST, min(_LARGEST, start))
    for _ in range(_STEPS):
        value, slope = logs(place)
        last, place = place, max(-_LARGEST, min(_LARGEST, place + (target - value) / slope))
        if abs(place - last) < 1e-8:
            break  # the next step would be the square of this
    return place


def _exp(place: float) -> float:
    """What the logarithm is of; 0 or infinite if it is no number that a float can be."""
    if abs(place) < _LARGEST:
        return math.exp(place)
    return 0.0 if place < 0 else math.inf


def _log_complement(log_p: float) -> float:
    """log(1 - p)."""
    if log_p >= 0:
        return -math.inf
    return math.log(-math.expm1(log_p)) if log_p > -0.5 else math.log1p(-math.exp(log_p))


def _beta_logs(a: float, b: float, x: float, y: float, distance: float) -> tuple[float, float]:
    """Logarithms of I_x(a, b) and of the rest; y: 1 - x, distance: x b - y a, both exact."""
    log_power = _beta_log_power(a, b, x, y, distance)
    if distance > 0:
        below = log_power - math.log(_beta_fraction(b, a, y, x, -distance))
        return _log_complement(below), below
    below = log_power - math.log(_beta_fraction(a, b, x, y, distance))
    return below, _log_complement(below)


def _beta_log_power(a: float, b: float, x: float, y: float, distance: float) -> float:
    """log(x^a y^b / B(a, b))."""
    n = a + b
    deviance = _times_log(a, x, a / n, distance) + _times_log(b, y, b / n, -distance)
    error = _stirling_error(n) - _stirling_error(a) - _stirling_error(b)
    return deviance + error + 0.5 * math.log(a / n * b) - _HALF_LOG_TAU


def _times_log(a: float, x: float, mean: float, distance: float) -> float:
    """a log(x / mean), where distance is a x / mean - a."""
    share = distance / a
    if abs(share) < 0.5:
        return a * math.log1p(share)
    ratio = x / mean
    return a * (math.log(ratio) if ratio > 0 else math.log(x) - math.log(mean))


def _beta_fraction(a: float, b: float, x: float, y: float, distance: float) -> float:
    """x^a y^b / B(a, b) / I_x(a, b), for x up to its mean."""

    def denominator(m: int) -> float:
        odd = (a + m) * (1 - distance + m * (1 + y)) / (a + 2 * m + 1)
        return m + (m * (b - m) * x / (a + 2 * m - 1) if m else 0.0) + odd

    def level(m: int) -> tuple[float, float]:
        last = a + 2 * m - 1
        numerator = (a + m - 1) / last * ((a + b + m - 1) / last) * m * (b - m) * x * x
        return numerator, denominator(m)

    return _continued_fraction(denominator(0), level)


def _continued_fraction(first: float, level: Callable[[int], tuple[float, float]]) -> float:
    """By Lentz's method. level: numerator and denominator of each level from 1 on."""
    c = found = first
    d = 0.0
    for m in range(1, _TERMS):
        numerator, term = level(m)
        d = 1 / (term + numerator * d)
        c = term + numerator / c
        found *= c * d
        if abs(c * d - 1) < _EPSILON * 4:
            return found
    return math.nan


def _gamma_logs(a: float, x: float) -> tuple[float, float]:
    """Logarithms of the regularised incomplete gamma functions, P(a, x) and Q(a, x)."""
    log_power = _gamma_log_power(a, x)
    if x > a + 1:
        above = log_power - math.log(_gamma_fraction(a, x))
        return _log_complement(above), above
    term = total = 1 / a
    for n in range(1, _TERMS):
        term *= x / (a + n)
        total += term
        if term < total * _EPSILON:
            break
    else:
        return math.nan, math.nan
    below = log_power + math.log(total)
    return below, _log_complement(below)


def _gamma_log_power(a: float, x: float) -> float:
    """log(x^a e^-x / Γ(a))."""
    distance = x - a
    deviance = _times_log(a, x, a, distance) - distance
    return deviance + 0.5 * math.log(a) - _HALF_LOG_TAU - _stirling_error(a)


def _gamma_fraction(a: float, x: float) -> float:
    """x^a e^-x / Γ(a) / Q(a, x), for x > a."""
    return _continued_fraction(x + 1 - a, lambda m: (m * (a - m), x + 2 * m + 1 - a))


def _stirling_error(a: float) -> float:
    """log Γ(a) less Stirling's formula."""
    if a < 10:
        return math.lgamma(a) - ((a - 0.5) * math.log(a) - a + _HALF_LOG_TAU)
    square = 1 / (a * a)
    return (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (
        1 / 1680 - square * (1 / 1188 - square * 691 / 360360))))) / a  # fmt: skip
