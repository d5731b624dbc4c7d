package lifecycle

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPruneCache(t *testing.T) {
	dir := t.TempDir()
	must(t, pruneCache(filepath.Join(dir, "absent"), time.Now()))
	now := time.Now()
	for name, age := range map[string]time.Duration{
		"guest-new": time.Hour, "guest-old": cacheTime + time.Hour, ".tmp-guest-1234": cacheTime + time.Hour,
		"rootfs-new": 0, "rootfs-old": 2 * cacheTime, "other": 2 * cacheTime,
	} {
		p := filepath.Join(dir, name)
		must(t, os.Mkdir(p, 0o755))
		must(t, os.Chtimes(p, now.Add(-age), now.Add(-age)))
	}
	must(t, os.Mkdir(filepath.Join(dir, "rootfs-old", "etc"), 0o755))
	must(t, os.Chtimes(filepath.Join(dir, "rootfs-old"), now.Add(-2*cacheTime), now.Add(-2*cacheTime)))
	must(t, pruneCache(dir, now))
	entries, err := os.ReadDir(dir)
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff([]string{"guest-new", "other", "rootfs-new"}, got); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

// TestGuestCopy checks that a copy is of the copied file, whatever happens to
// the source or a file with the copy's name.
func TestGuestCopy(t *testing.T) {
	dir := t.TempDir()
	source, cache := filepath.Join(dir, "guest"), filepath.Join(dir, "cache")
	must(t, os.WriteFile(source, []byte("one"), 0o755))
	one, err := copyGuest(source, cache)
	must(t, err)
	must(t, os.WriteFile(source, []byte("two"), 0o755))
	two, err := copyGuest(source, cache)
	must(t, err)
	if one.Path == two.Path || one.SHA256 == two.SHA256 {
		t.Errorf("two contents, one copy: %+v", one)
	}
	if data, err := os.ReadFile(one.Path); err != nil || string(data) != "one" {
		t.Errorf("the first copy holds %q, %v", data, err)
	}
	must(t, os.Remove(two.Path))
	must(t, os.WriteFile(two.Path, []byte("forged"), 0o755))
	again, err := copyGuest(source, cache)
	must(t, err)
	if data, err := os.ReadFile(again.Path); err != nil || string(data) != "two" {
		t.Errorf("a forged copy was taken: %q, %v", data, err)
	}
	if info, err := os.Stat(again.Path); err != nil || info.Mode().Perm() != 0o555 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
