package approval

import (
	"testing"
)

func TestTheOtherClockIsOne(t *testing.T) {
	first := sinceBoot()
	for range 1000 {
		if next := sinceBoot(); next < first || first <= 0 {
			t.Fatalf("%v after %v", next, first)
		}
	}
}
