package stats

import "math"

// TQuantile returns the quantile p of Student's distribution with so many degrees of
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
// t, for t ≥ 0.
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
