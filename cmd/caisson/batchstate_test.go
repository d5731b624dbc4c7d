package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestClaimState: the state directory of a batch is used only if this user's Caisson
// made it. A copied one, such as from an archive, is removed, and so is another user's.
func TestClaimState(t *testing.T) {
	top := t.TempDir()
	mine, other := environ{"HOME=" + filepath.Join(top, "mine")}, environ{"HOME=" + filepath.Join(top, "other")}
	claim := func(e environ, dir string, wantMade bool) {
		t.Helper()
		made, err := e.claimState(dir)
		if made != wantMade || err != nil || !e.ownsState(dir) {
			t.Errorf("%s: made %t, %v; want %t", dir, made, err, wantMade)
		}
	}
	list := func(dir string) string { return filepath.Join(dir, "caisson", "cleanup") }
	state, sent := filepath.Join(top, "state"), filepath.Join(top, "sent")
	claim(mine, state, true)
	must(t, os.MkdirAll(list(state), 0o700))
	must(t, os.CopyFS(sent, os.DirFS(state)))
	claim(mine, state, false)
	if _, err := os.Stat(list(state)); err != nil {
		t.Errorf("control: what a killed batch left is gone: %v", err)
	}
	for dir, e := range map[string]environ{sent: mine, state: other} {
		if e.ownsState(dir) {
			t.Errorf("%s counts as the user's own", dir)
		}
		claim(e, dir, true)
		if _, err := os.Stat(list(dir)); err == nil {
			t.Errorf("%s: what somebody else left is there", dir)
		}
	}
	homeless := environ{}
	if made, err := homeless.claimState(state); !made || err != nil || homeless.ownsState(state) {
		t.Errorf("without a home: made %t, %v", made, err)
	}
}
