package lifecycle

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// keepAnyAge lets tests keep facts about new files.
func keepAnyAge(t *testing.T) {
	before := factAge
	factAge = 0
	t.Cleanup(func() { factAge = before })
}

// changeFile writes to a file until its times show it, and resets the time that
// a program can set.
func changeFile(t *testing.T, path, text string) {
	t.Helper()
	before, ok := identifyFile(path)
	if !ok {
		t.Fatalf("%s is no file", path)
	}
	deadline := time.Now().Add(10 * time.Second)
	for now := before; now == before; now, _ = identifyFile(path) {
		if time.Now().After(deadline) {
			t.Fatalf("%s is still the same: %+v", path, now)
		}
		must(t, os.WriteFile(path, []byte(text), 0o755))
		at := time.Unix(0, before.modified)
		must(t, os.Chtimes(path, at, at))
	}
}

// TestRecallFact checks that a fact is recalled as long as the file is the
// same, by another process too.
func TestRecallFact(t *testing.T) {
	dir := t.TempDir()
	cache, path := filepath.Join(dir, "cache"), filepath.Join(dir, "file")
	must(t, os.WriteFile(path, []byte("one"), 0o755))
	recall := func(want string) func(string) {
		t.Helper()
		fact, keep := RecallFact(cache, "kind", path)
		if fact != want {
			t.Errorf("fact %q, want %q", fact, want)
		}
		return keep
	}
	recall("")("no cache")
	recall("")
	must(t, os.Mkdir(cache, 0o700))
	recall("")("too young")
	keep := recall("")
	keepAnyAge(t)
	keep("first")
	recall("first")
	if fact, _ := RecallFact(cache, "another", path); fact != "" {
		t.Errorf("another kind has %q", fact)
	}
	changeFile(t, path, "two") // as long, and as old to programs
	keep = recall("")
	changeFile(t, path, "six")
	keep("of a file that changed meanwhile")
	recall("")("third")
	recall("third")
	must(t, os.Rename(path, path+"-old"))
	must(t, os.Link(path+"-old", path))
	recall("") // the number of links is a change, too
	must(t, os.Remove(path))
	recall("")("absent")
	must(t, os.Mkdir(path, 0o700))
	recall("")("directory")
	entries, err := os.ReadDir(cache)
	must(t, err)
	if len(entries) != 2 {
		t.Errorf("%d facts are kept, want 2", len(entries))
	}
	must(t, pruneCache(cache, time.Now().Add(cacheTime+2*time.Hour)))
	if entries, err := os.ReadDir(cache); err != nil || len(entries) > 0 {
		t.Errorf("facts that are not pruned: %v, %v", entries, err)
	}
}

// TestGuestCopyRecalled checks that the hashes of the guest and its copy are
// recalled, and a changed copy is still found.
func TestGuestCopyRecalled(t *testing.T) {
	keepAnyAge(t)
	dir := t.TempDir()
	source, cache := filepath.Join(dir, "guest"), filepath.Join(dir, "cache")
	must(t, os.WriteFile(source, []byte("one"), 0o755))
	one, err := copyGuest(source, cache)
	must(t, err)
	for range 2 { // the second has both hashes
		if again, err := copyGuest(source, cache); err != nil || again.Path != one.Path || again.SHA256 != one.SHA256 {
			t.Fatalf("copy %+v, %v, want %+v", again, err, one)
		}
	}
	for _, path := range []string{source, one.Path} {
		if fact, _ := RecallFact(cache, hashFact, path); fact != one.SHA256 {
			t.Errorf("control: the hash of %s is recalled as %q", path, fact)
		}
	}
	must(t, os.Chmod(one.Path, 0o755))
	changeFile(t, one.Path, "bad")
	again, err := copyGuest(source, cache)
	must(t, err)
	if data, err := os.ReadFile(again.Path); err != nil || string(data) != "one" {
		t.Errorf("the copy holds %q, %v", data, err)
	}
	changeFile(t, source, "two")
	two, err := copyGuest(source, cache)
	must(t, err)
	if data, err := os.ReadFile(two.Path); err != nil || string(data) != "two" || two.SHA256 == one.SHA256 {
		t.Errorf("the copy of another guest holds %q, %v", data, err)
	}
	for _, damage := range []string{"", "no hash"} { // of the fact itself
		_, keep := RecallFact(cache, hashFact, source)
		keep(damage)
		if again, err := copyGuest(source, cache); err != nil || again.SHA256 != two.SHA256 {
			t.Errorf("with the fact %q: %+v, %v", damage, again, err)
		}
	}
}
