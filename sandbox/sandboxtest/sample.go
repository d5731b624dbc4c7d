package sandboxtest

import (
	"hash/fnv"
	"os"
	"testing"
)

// Sampled returns the points of a matrix at which a test is to run: all of them, or, where
// SAMPLE is set as in CI, one that the test's name chooses. Every point then gets its
// share of the tests.
func Sampled[T any](t testing.TB, points ...T) []T {
	t.Helper()
	if os.Getenv("SAMPLE") == "" {
		return points
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(t.Name()))
	i := int(h.Sum32()>>8) % len(points)
	return points[i : i+1]
}
