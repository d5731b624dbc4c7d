package stats

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.IsNaN(got) != math.IsNaN(want) || math.Abs(got-want) > tolerance {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// TestPassAtK compares with exact binomial coefficients.
func TestPassAtK(t *testing.T) {
	for n := range 40 {
		for passed := range n + 1 {
			for k := range n + 1 {
				want := math.NaN()
				if k > 0 {
					ratio := new(big.Rat).SetFrac(new(big.Int).Binomial(int64(n-passed), int64(k)), new(big.Int).Binomial(int64(n), int64(k)))
					want, _ = new(big.Rat).Sub(big.NewRat(1, 1), ratio).Float64()
				}
				near(t, "pass@k", PassAtK(n, passed, k), want, 1e-12)
			}
		}
	}
	for _, c := range [][3]int{{3, 1, 4}, {3, 4, 1}, {3, -1, 1}, {0, 0, 1}} {
		near(t, "undefined pass@k", PassAtK(c[0], c[1], c[2]), math.NaN(), 0)
	}
}

// TestPassAtKIsUnbiased: the mean over all samples of n attempts is the true
// probability.
func TestPassAtKIsUnbiased(t *testing.T) {
	const n, k = 6, 3
	for _, rate := range []float64{0.1, 0.5, 0.8} {
		expected := 0.0
		for passed := range n + 1 {
			weight, _ := new(big.Float).SetInt(new(big.Int).Binomial(n, int64(passed))).Float64()
			expected += weight * math.Pow(rate, float64(passed)) * math.Pow(1-rate, float64(n-passed)) * PassAtK(n, passed, k)
		}
		near(t, "expectation", expected, 1-math.Pow(1-rate, k), 1e-12)
	}
}

// TestWilson compares with method 3 in Newcombe, Two-sided confidence intervals for the
// single proportion (Statistics in Medicine 17, 1998), table I.
func TestWilson(t *testing.T) {
	for _, c := range []struct{ passed, n, low, high float64 }{
		{81, 263, 0.2553, 0.3662}, {15, 148, 0.0624, 0.1605}, {0, 20, 0, 0.1611}, {1, 29, 0.0061, 0.1718},
	} {
		i := Wilson(c.passed, int(c.n))
		near(t, "low", i.Low, c.low, 5e-5)
		near(t, "high", i.High, c.high, 5e-5)
	}
	if Wilson(0, 0).Known() {
		t.Error("no trials have an interval")
	}
}

// TestTQuantile compares with printed tables of Student's distribution.
func TestTQuantile(t *testing.T) {
	for _, c := range []struct{ p, freedom, want float64 }{
		{0.975, 1, 12.706},
		{0.975, 2, 4.303},
		{0.975, 5, 2.571},
		{0.975, 10, 2.228},
		{0.975, 30, 2.042},
		{0.975, 120, 1.980},
		{0.975, 1e6, 1.960},
		{0.95, 4, 2.132},
		{0.995, 9, 3.250},
		{0.025, 10, -2.228},
		{0.5, 7, 0},
	} {
		near(t, "quantile", TQuantile(c.p, c.freedom), c.want, 5e-4)
	}
}

// sleep are the extra hours of sleep by two drugs in Student's paper (Biometrika 1908),
// as in R's data set "sleep".
var sleep = [][2]float64{{0.7, 1.9}, {-1.6, 0.8}, {-0.2, 1.1}, {-1.2, 0.1}, {-0.1, -0.1}, {3.4, 4.4}, {3.7, 5.5}, {0.8, 1.6}, {0, 4.6}, {2, 3.4}}

// TestTInterval compares with R's t.test of these pairs: 1.58, and 0.7001142 to 2.4598858.
func TestTInterval(t *testing.T) {
	var differences []float64
	for _, p := range sleep {
		differences = append(differences, p[1]-p[0])
	}
	i := TInterval(differences)
	near(t, "difference", Mean(differences), 1.58, 1e-9)
	near(t, "low", i.Low, 0.7001142, 5e-7)
	near(t, "high", i.High, 2.4598858, 5e-7)
}

// TestMcNemar compares with statsmodels' mcnemar(exact=True) of 121 and 59, and with
// six coins: all heads or all tails.
func TestMcNemar(t *testing.T) {
	near(t, "p", McNemar(121, 59), 4.434449263755e-06, 1e-16)
	near(t, "p of six", McNemar(0, 6), 2.0/64, 1e-15)
	near(t, "p of a tie", McNemar(4, 4), 1, 0)
	near(t, "p of none", McNemar(0, 0), 1, 0)
}

func TestCompare(t *testing.T) {
	many := func(n int, a, b float64, attempts int) []Pair {
		var list []Pair
		for range n {
			list = append(list, Pair{A: a, B: b, AttemptsA: attempts, AttemptsB: attempts})
		}
		return list
	}
	for _, c := range []struct {
		name     string
		pairs    []Pair
		verdict  Verdict
		sentence string
	}{
		{"none", nil, CannotTell, "Can't tell: x and y have no task in common that was judged on both sides."},
		{"equal", many(3, 1, 1, 1), Equal, "Can't tell x from y: 3 tasks with the same result."},
		{"five of five", many(5, 1, 0, 1), CannotTell, "Can't tell: the difference of 100.0 points on 5 tasks is within what chance makes (better on 5, worse on 0; McNemar's exact p = 0.062)."},
		{"six of six", many(6, 1, 0, 1), BetterA, "x is better than y by 100.0 points on 6 tasks (better on 6, worse on 0; McNemar's exact p = 0.031)."},
		{"worse", many(6, 0, 1, 1), BetterB, "y is better than x by 100.0 points on 6 tasks (better on 6, worse on 0; McNemar's exact p = 0.031)."},
		{"no variance, several attempts", many(6, 0.5, 0.25, 4), BetterA, "x is better than y by 25.0 points on 6 tasks (better on 6, worse on 0; McNemar's exact p = 0.031)."},
		{"no variance but rounding", many(3, 0.2, 0, 5), CannotTell, "Can't tell: the difference of 20.0 points on 3 tasks is within what chance makes (better on 3, worse on 0; McNemar's exact p = 0.25)."},
		{"interval", append(many(20, 1, 0.5, 2), many(10, 0.5, 0.5, 2)...), BetterA, "x is better than y by 33.3 points on 30 tasks (95 % CI 24.4 to 42.3)."},
		{"interval below", append(many(20, 0.5, 1, 2), many(10, 0.5, 0.5, 2)...), BetterB, "y is better than x by 33.3 points on 30 tasks (95 % CI 24.4 to 42.3)."},
		{"interval with zero", append(many(2, 1, 0.5, 2), many(1, 0, 0.5, 2)...), CannotTell, "Can't tell: the difference of 16.7 points on 3 tasks is within what chance makes (too few tasks: the 95 % CI is -100 to 100 points)."},
		{"bounded", append(many(2, 1, 0.5, 2), many(2, 0.5, 0.5, 2)...), CannotTell, "Can't tell: the difference of 25.0 points on 4 tasks is within what chance makes (95 % CI -20.9 to 70.9)."},
		{"bounded on one side", append(many(2, 1, 0, 2), many(1, 0.5, 0, 2)...), BetterA, "x is better than y by 83.3 points on 3 tasks (95 % CI 11.6 to 100.0)."},
	} {
		got := Compare(c.pairs)
		if got.Verdict != c.verdict || got.Sentence("x", "y") != c.sentence {
			t.Errorf("%s: %s: %s", c.name, got.Verdict, got.Sentence("x", "y"))
		}
	}
}

func TestRateInterval(t *testing.T) {
	if i, want := RateInterval([]float64{1, 0, 1}, true), Wilson(2, 3); i != want {
		t.Errorf("one attempt: %v, want %v", i, want)
	}
	if i := RateInterval([]float64{1, 1, 1}, false); i != Wilson(3, 3) || i.Low >= 1 {
		t.Errorf("equal rates: %v", i)
	}
	if i := RateInterval([]float64{0.5, 1, 0}, false); i.Low != 0 || i.High != 1 {
		t.Errorf("clamped: %v", i)
	}
	if RateInterval(nil, false).Known() {
		t.Error("no tasks have an interval")
	}
	near(t, "median", Median([]float64{3, 1, 2}), 2, 0)
	near(t, "median of four", Median([]float64{4, 1, 2, 3}), 2.5, 0)
	near(t, "median of none", Median(nil), math.NaN(), 0)
}

// TestProperties: swapping sides mirrors the comparison, intervals contain the mean,
// and pass@k grows with k and with passes.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		attempts := rapid.IntRange(1, 5).Draw(rt, "attempts")
		share := rapid.Custom(func(rt *rapid.T) float64 {
			return float64(rapid.IntRange(0, attempts).Draw(rt, "passed")) / float64(attempts)
		})
		var pairs, swapped []Pair
		for range rapid.IntRange(0, 30).Draw(rt, "tasks") {
			p := Pair{A: share.Draw(rt, "a"), B: share.Draw(rt, "b"), AttemptsA: attempts, AttemptsB: attempts}
			pairs, swapped = append(pairs, p), append(swapped, Pair{A: p.B, B: p.A, AttemptsA: attempts, AttemptsB: attempts})
		}
		c, s := Compare(pairs), Compare(swapped)
		mirrored := map[Verdict]Verdict{BetterA: BetterB, BetterB: BetterA, Equal: Equal, CannotTell: CannotTell}
		if s.Verdict != mirrored[c.Verdict] || c.Better != s.Worse || c.Better+c.Worse+c.Same != c.Tasks || c.P != s.P {
			rt.Fatalf("%+v and swapped %+v", c, s)
		}
		if c.Interval.Known() && (c.Interval.Low > c.Difference || c.Interval.High < c.Difference) {
			rt.Fatalf("%v without %v", c.Interval, c.Difference)
		}
		n := rapid.IntRange(1, 50).Draw(rt, "n")
		passed, k := rapid.IntRange(0, n).Draw(rt, "passed"), rapid.IntRange(1, n).Draw(rt, "k")
		p := PassAtK(n, passed, k)
		if p < 0 || p > 1 || k > 1 && p < PassAtK(n, passed, k-1)-1e-12 || passed > 0 && p < PassAtK(n, passed-1, k)-1e-12 {
			rt.Fatalf("pass@%d of %d/%d: %v", k, passed, n, p)
		}
		if i := Wilson(float64(passed), n); i.Low > float64(passed)/float64(n)+1e-12 || i.High < float64(passed)/float64(n)-1e-12 {
			rt.Fatalf("%v without %d/%d", i, passed, n)
		}
	})
}
