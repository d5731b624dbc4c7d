package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestFactsAreToldOnceADay: a fact is repeated after a day, or if it could not be
// recorded.
func TestFactsAreToldOnceADay(t *testing.T) {
	state := t.TempDir()
	env := environ{"XDG_STATE_HOME=" + state}
	check := func(facts, want []string) {
		t.Helper()
		if diff := cmp.Diff(want, env.untold("/w", facts)); diff != "" {
			t.Errorf("of %q (-want +got):\n%s", facts, diff)
		}
	}
	must(t, os.Mkdir(env.stateDir(), 0o700))
	check([]string{"a"}, []string{"a"})
	check([]string{"a", "b"}, []string{"b"})
	check([]string{"a", "b"}, nil)
	check(nil, nil)
	if got := env.untold("/other", []string{"a"}); len(got) != 1 {
		t.Error("what was told of one workspace is not told of another")
	}
	path := filepath.Join(env.stateDir(), toldFile)
	now := time.Now()
	for name, text := range map[string]any{
		"old": map[string]time.Time{"/w\na": now.Add(-tellAt), "/w\nb": now}, "from the future": map[string]time.Time{"/w\na": now.Add(time.Hour), "/w\nb": now},
	} {
		stored, err := json.Marshal(text)
		must(t, err)
		if err := os.WriteFile(path, stored, 0o600); err != nil {
			t.Fatal(name, err)
		}
		check([]string{"a", "b"}, []string{"a"})
	}
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	check([]string{"a"}, []string{"a"})
	check([]string{"a"}, nil)
	env = nil
	check([]string{"a"}, []string{"a"})
	check([]string{"a"}, []string{"a"})
}
