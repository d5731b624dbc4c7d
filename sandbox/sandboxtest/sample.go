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
	i := choose(t.Name(), len(points))
	return points[i : i+1]
}

// RunsAt reports whether a row of a matrix runs at a point. In a sample, the rows take the points in
// turn, so that no row is left out.
func RunsAt(row int, point string, points ...string) bool {
	return os.Getenv("SAMPLE") == "" || points[row%len(points)] == point
}

// isSampled reports whether a name belongs to the sample, which has one of n names. Without
// SAMPLE, every name belongs to it.
func isSampled(name string, n int) bool { return os.Getenv("SAMPLE") == "" || choose(name, n) == 0 }

// choose chooses one of n numbers by a name.
func choose(name string, n int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return int(h.Sum32()>>8) % n // the lowest bits follow the last letters
}
