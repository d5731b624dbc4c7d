package worktest

import (
	"os"
	"testing"
)

// The controls of the hostile sessions that the backends' tests hold.
func TestControls(t *testing.T) {
	uid := os.Geteuid()
	if uid == 0 {
		uid = 1000
	}
	Controls(t, uid)
}

// The controls of the closed directories that the backends' tests make.
func TestClosedControls(t *testing.T) {
	uid := os.Geteuid()
	if uid == 0 {
		uid = 1000
	}
	ClosedControls(t, uid)
}
