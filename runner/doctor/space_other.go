//go:build !unix

package doctor

import "math"

// freeSpace is unknown here.
func freeSpace(string) (int64, error) { return math.MaxInt64, nil }
