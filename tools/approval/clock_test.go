package approval

import (
	"runtime"
	"testing"
)

func TestTheOtherClockIsOne(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("CLOCK_BOOTTIME is Linux's")
	}
	first := sinceBoot()
	for range 1000 {
		if next := sinceBoot(); next < first || first <= 0 {
			t.Fatalf("%v after %v", next, first)
		}
	}
}
