// Package stats computes a batch's figures: rates of passed trials, their intervals,
// and whether one of two batches is better.
//
// All functions are pure. Intervals and tests are two-sided, at [Level].
package stats

import (
	"math"
	"slices"
)

// Level is the confidence of all intervals. A p-value below 1-Level is significant.
const Level = 0.95

// Interval is a confidence interval at [Level]. Unknown bounds are NaN.
type Interval struct{ Low, High float64 }

// unknown is the interval for too few observations.
var unknown = Interval{math.NaN(), math.NaN()}

// Known reports whether both bounds are known.
func (i Interval) Known() bool { return !math.IsNaN(i.Low) && !math.IsNaN(i.High) }

func (i Interval) clamp(low, high float64) Interval {
	return Interval{max(low, i.Low), min(high, i.High)}
}

// PassAtK returns the unbiased estimate of the probability that at least one of k
// attempts passes, given n attempts of which passed did: 1 - C(n-passed, k)/C(n, k), as
// in Chen et al., Evaluating Large Language Models Trained on Code (2021), equation 1.
// It is NaN unless 1 ≤ k ≤ n and 0 ≤ passed ≤ n.
func PassAtK(n, passed, k int) float64 {
	if k < 1 || k > n || passed < 0 || passed > n {
		return math.NaN()
	}
	if n-passed < k {
		return 1
	}
	miss := 1.0
	for i := n - passed + 1; i <= n; i++ {
		miss *= 1 - float64(k)/float64(i)
	}
	return 1 - miss
}

// Mean returns the arithmetic mean, or NaN without values.
func Mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// Median returns the median, or NaN without values. It does not change values.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// sampleDeviation returns the sample standard deviation of at least two values.
func sampleDeviation(values []float64) float64 {
	mean, sum := Mean(values), 0.0
	for _, v := range values {
		sum += (v - mean) * (v - mean)
	}
	return math.Sqrt(sum / float64(len(values)-1))
}

// Wilson returns Wilson's score interval (1927) for passed of n, without continuity
// correction. It is unknown if n is 0.
func Wilson(passed float64, n int) Interval {
	if n <= 0 {
		return unknown
	}
	const z = 1.959963984540054 // the 0.975 quantile of the normal distribution
	size := float64(n)
	rate := passed / size
	center := (rate + z*z/(2*size)) / (1 + z*z/size)
	half := z / (1 + z*z/size) * math.Sqrt(rate*(1-rate)/size+z*z/(4*size*size))
	return Interval{center - half, center + half}.clamp(0, 1)
}

// TInterval returns the interval of the values' mean by Student's distribution. It is
// unknown for fewer than two values.
func TInterval(values []float64) Interval {
	if len(values) < 2 {
		return unknown
	}
	half := TQuantile((1+Level)/2, float64(len(values)-1)) * sampleDeviation(values) / math.Sqrt(float64(len(values)))
	mean := Mean(values)
	return Interval{mean - half, mean + half}
}

// areEqual reports whether values differ by no more than rounding.
func areEqual(values []float64) bool { return slices.Max(values)-slices.Min(values) < 1e-9 }

// RateInterval returns the interval of the mean of rates, one per task. Attempts at the
// same task are not independent, so it is Student's interval over tasks; if each task
// has one attempt, or all rates are equal, it is Wilson's.
func RateInterval(rates []float64, oneAttempt bool) Interval {
	if len(rates) == 0 {
		return unknown
	}
	if oneAttempt || len(rates) < 2 || areEqual(rates) {
		sum := 0.0
		for _, r := range rates {
			sum += r
		}
		return Wilson(sum, len(rates))
	}
	return TInterval(rates).clamp(0, 1)
}

// McNemar returns the exact p-value of McNemar's test: the probability that equally
// likely discordant pairs split at least as unequally as better and worse. It is 1
// without pairs.
func McNemar(better, worse int) float64 {
	n, less := better+worse, min(better, worse)
	if n == 0 {
		return 1
	}
	p := 0.0
	for i := 0; i <= less; i++ {
		p += math.Exp(logChoose(n, i) - float64(n)*math.Ln2)
	}
	return min(1, 2*p)
}

func logChoose(n, k int) float64 {
	return logGamma(float64(n+1)) - logGamma(float64(k+1)) - logGamma(float64(n-k+1))
}

func logGamma(x float64) float64 {
	v, _ := math.Lgamma(x)
	return v
}

// TQuantile returns the p quantile of Student's distribution with the given degrees of
// freedom, for 0 < p < 1.
func TQuantile(p, freedom float64) float64 {
	if p < 0.5 {
		return -TQuantile(1-p, freedom)
	}
	low, high := 0.0, 1.0
	for tCumulative(high, freedom) < p && high < math.MaxFloat64/4 {
		high *= 2
	}
	for range 200 {
		middle := (low + high) / 2
		if tCumulative(middle, freedom) < p {
			low = middle
		} else {
			high = middle
		}
	}
	return (low + high) / 2
}

// tCumulative returns the probability that a value of Student's distribution is at most
// t ≥ 0.
func tCumulative(t, freedom float64) float64 {
	return 1 - incompleteBeta(freedom/2, 0.5, freedom/(freedom+t*t))/2
}

// incompleteBeta returns the regularized incomplete beta function, by its continued
// fraction with Lentz's method (Press et al., Numerical Recipes, 6.4).
func incompleteBeta(a, b, x float64) float64 {
	switch {
	case x <= 0:
		return 0
	case x >= 1:
		return 1
	case x > (a+1)/(a+b+2):
		return 1 - incompleteBeta(b, a, 1-x)
	}
	front := math.Exp(logGamma(a+b) - logGamma(a) - logGamma(b) + a*math.Log(x) + b*math.Log1p(-x))
	const tiny, enough = 1e-300, 1e-16
	c, d := 1.0, nonZero(1-(a+b)*x/(a+1), tiny)
	d = 1 / d
	h := d
	for i := 1; i <= 1000; i++ {
		m := float64(i)
		for _, term := range [2]float64{
			m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m)),
			-(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1)),
		} {
			d = 1 / nonZero(1+term*d, tiny)
			c = nonZero(1+term/c, tiny)
			h *= d * c
		}
		if math.Abs(d*c-1) < enough {
			break
		}
	}
	return front * h / a
}

func nonZero(v, tiny float64) float64 {
	if math.Abs(v) < tiny {
		return tiny
	}
	return v
}
