package worktest

import (
	"os"
	"testing"
)

// TestControls is the control of the backends' tests of hostile sessions.
func TestControls(t *testing.T) {
	uid := os.Geteuid()
	if uid == 0 {
		uid = 1000
	}
	checkControls(t, uid)
}

// TestClosedControls is the control of the backends' tests of closed
// directories.
func TestClosedControls(t *testing.T) {
	uid := os.Geteuid()
	if uid == 0 {
		uid = 1000
	}
	checkClosedControls(t, uid)
}
