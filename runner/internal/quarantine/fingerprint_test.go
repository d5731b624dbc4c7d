package quarantine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

// A change changes a directory of files.
type change func(dir string) error

func writes(name, text string) change {
	return func(dir string) error {
		p := filepath.Join(dir, name)
		return errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o600))
	}
}

func removes(name string) change {
	return func(dir string) error { return os.Remove(filepath.Join(dir, name)) }
}

func makes(name string) change {
	return func(dir string) error { return os.MkdirAll(filepath.Join(dir, name), 0o755) }
}

func links(name, target string) change {
	return func(dir string) error {
		p := filepath.Join(dir, name)
		return errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.RemoveAll(p), os.Symlink(target, p))
	}
}

// names adds a hard link.
func names(old, name string) change {
	return func(dir string) error { return os.Link(filepath.Join(dir, old), filepath.Join(dir, name)) }
}

func listens(name string) change {
	return func(dir string) error {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name)})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false)
		return l.Close()
	}
}

func chmods(name string, mode os.FileMode) change {
	return func(dir string) error { return os.Chmod(filepath.Join(dir, name), mode) }
}

func pipes(name string) change {
	return func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, name), 0o600) }
}

// fingerprintFiles are the files of the tests, by repository.
var fingerprintFiles = map[string]map[string]string{
	"r/.git": {
		"r/.git/config": "", "r/.git/HEAD": "", "r/.git/objects/": "", "r/.git/refs/": "", "r/.git/info/": "", "file": "", "same": "", "dir/x": "",
	},
	"s/.git":    {"s/.git": "gitdir: ../r/.git\n", "r/.git/config": "", "r/.git/objects/ab/": "", "r/.git/hooks/": ""},
	"l/.git":    {"s/.git": "gitdir: ../r/.git\n", "r/.git/config": "", "l/": ""},
	"c/.git":    {"c/.git/commondir": "../../r/.git", "r/.git/config": ""},
	"own/.git":  {"own/.git": "gitdir: ../.git", ".git/config": ""},
	"part/.git": {"part/.git": "gitdir: $DIR/.git/modules/m", ".git/modules/m/config": ""},
	"hop1/.git": {
		"hop1/.git/commondir": "../../hop2/.git", "hop2/.git/commondir": "../../hop3/.git", "hop3/.git/commondir": "../../hop4/.git",
		"hop4/.git/commondir": "../../hop5/.git", "hop5/.git/config": "", "hop3/.git/config": "", "hop4/.git/config": "",
	},
	"bare":  {"bare/config": "", "bare/HEAD": "", "bare/objects/": "", "bare/refs/": ""},
	".":     {"objects/": ""},
	"h/.hg": {"h/.hg/hgrc": "", "h/.hg/dirstate": "", "h/.hg/store/": ""},
}

// TestFingerprintsTellRepositoriesApart: what git or hg obeys in a repository, and in ones that it
// names, counts. What ordinary work writes doesn't.
func TestFingerprintsTellRepositoriesApart(t *testing.T) {
	large := strings.Repeat("x", fingerprintBytes+1)
	for name, tc := range map[string]struct {
		repo    string
		before  []change // besides the files below
		change  change
		skip    string
		shallow bool
		want    bool // another one
	}{
		"nothing":                    {repo: "r/.git", change: writes("other", "x")},
		"its configuration":          {repo: "r/.git", change: writes("r/.git/config", "changed"), want: true},
		"the mode of a file":         {repo: "r/.git", change: chmods("r/.git/config", 0o700), want: true},
		"a file that is gone":        {repo: "r/.git", change: removes("r/.git/config"), want: true},
		"a large file":               {repo: "r/.git", before: []change{writes("r/.git/info/x", large)}, change: writes("r/.git/info/x", large[1:]+"y"), want: true},
		"a file of the largest size": {repo: "r/.git", before: []change{writes("r/.git/info/x", large[1:])}, change: writes("r/.git/info/x", large[2:]+"y"), want: true},
		"the same file again":        {repo: "r/.git", change: writes("r/.git/config", "")},
		"the same large file again": {
			repo: "r/.git", before: []change{writes("r/.git/info/x", large[1:])}, change: writes("r/.git/info/x", large[1:]),
		},
		"the same large file again that a symlink leads to": {
			repo: "r/.git", before: []change{writes("big", large[1:]), links("r/.git/info", "../../big")},
			change: func(dir string) error {
				return errors.Join(writes("big", large[1:])(dir), os.Chtimes(filepath.Join(dir, "big"), time.Time{}, time.Unix(1, 0)))
			},
		},
		"HEAD":                       {repo: "r/.git", change: writes("r/.git/HEAD", "changed")},
		"an object":                  {repo: "r/.git", change: writes("r/.git/objects/ab/0123", "x")},
		"a hook":                     {repo: "r/.git", change: writes("r/.git/hooks/x", "x"), want: true},
		"a hook that does not count": {repo: "r/.git", change: writes("r/.git/hooks/x", "x"), skip: "hooks"},
		"what was quarantined":       {repo: "r/.git", change: writes("r/.git/x"+quarantinedMark+"1", "x")},
		"a directory":                {repo: "r/.git", change: makes("r/.git/hooks"), want: true},
		"an ordinary directory":      {repo: "r/.git", change: makes("r/.git/refs/heads")},
		"another name of HEAD":       {repo: "r/.git", change: names("r/.git/HEAD", "other"), want: true},
		"another name of a file":     {repo: "r/.git", change: names("r/.git/config", "other"), want: true},
		"HEAD as a symlink":          {repo: "r/.git", change: links("r/.git/HEAD", "x"), want: true},
		"another target of HEAD": {
			repo: "r/.git", before: []change{links("r/.git/HEAD", "x")}, change: links("r/.git/HEAD", "y"), want: true,
		},
		"what HEAD leads to": {
			repo: "r/.git", before: []change{links("r/.git/HEAD", "../../file")}, change: writes("file", "x"),
		},
		"what a symlink among the objects leads to": {
			repo: "r/.git", before: []change{links("r/.git/objects/ab", "../../../dir")}, change: writes("dir/y", "x"),
		},
		"a file of the name of an ordinary directory": {repo: "r/.git", change: writes("r/.git/logs", "x"), want: true},
		"a symlink among the objects":                 {repo: "r/.git", change: links("r/.git/objects/ab", "x"), want: true},
		"a symlink below a directory that may differ": {repo: "r/.git", change: links("r/.git/refs/x", "y"), want: true},
		"one that is not looked into":                 {repo: "r/.git", change: links("r/.git/refs/x", "y"), shallow: true},
		"a hook, where others are not looked into":    {repo: "r/.git", change: writes("r/.git/hooks/x", "y"), shallow: true, want: true},
		"a socket":                                            {repo: "r/.git", change: listens("r/.git/info/s"), want: true},
		"git's own socket":                                    {repo: "r/.git", change: listens("r/.git/fsmonitor--daemon.ipc")},
		"a file of the name of git's own socket":              {repo: "r/.git", change: writes("r/.git/fsmonitor--daemon.ipc", ""), want: true},
		"a pipe of the name of a file that may differ":        {repo: "r/.git", change: pipes("r/.git/index"), want: true},
		"a file that a symlink leads to":                      {repo: "r/.git", before: []change{links("r/.git/info", "../../file")}, change: writes("file", "x"), want: true},
		"a file that it begins to lead to":                    {repo: "r/.git", before: []change{links("r/.git/info", "../../new")}, change: writes("new", ""), want: true},
		"a large file that a symlink leads to":                {repo: "r/.git", before: []change{writes("big", large), links("r/.git/info", "../../big")}, change: writes("big", large+"x"), want: true},
		"a file of the largest size that it leads to":         {repo: "r/.git", before: []change{writes("big", large[1:]), links("r/.git/info", "../../big")}, change: writes("big", large[2:]+"y"), want: true},
		"a file in a directory that a symlink leads to":       {repo: "r/.git", before: []change{links("r/.git/info", "../../dir")}, change: writes("dir/x", "x"), want: true},
		"a mode in a directory that a symlink leads to":       {repo: "r/.git", before: []change{links("r/.git/info", "../../dir")}, change: chmods("dir/x", 0o700), want: true},
		"another target of a symlink":                         {repo: "r/.git", before: []change{links("r/.git/info", "../../file")}, change: links("r/.git/info", "../../same"), want: true},
		"a worktree's configuration":                          {repo: "r/.git", change: writes("r/.git/worktrees/w/config.worktree", ""), want: true},
		"a .git file":                                         {repo: "s/.git", change: writes("s/.git", "gitdir: ../r/.git/hooks"), want: true},
		"the configuration of a repository that it names":     {repo: "s/.git", change: writes("r/.git/config", "changed"), want: true},
		"an object of a repository that it names":             {repo: "s/.git", change: writes("r/.git/objects/ab/0123", "x")},
		"the workspace's own repository, which it names":      {repo: "own/.git", change: writes(".git/config", "changed")},
		"a part of the workspace's own, which it names":       {repo: "part/.git", change: writes(".git/modules/m/config", "changed")},
		"a part of the workspace's own, which is new":         {repo: "part/.git", before: []change{removes(".git/modules/m/config"), removes(".git/modules/m")}, change: makes(".git/modules/m"), want: true},
		"a symlink to a .git file":                            {repo: "l/.git", before: []change{links("l/.git", "../s/.git")}, change: writes("r/.git/hooks/x", "x")},
		"the file that a symlink of that name leads to":       {repo: "l/.git", before: []change{links("l/.git", "../s/.git")}, change: writes("s/.git", "gitdir: x"), want: true},
		"a repository that its commondir names":               {repo: "c/.git", change: writes("r/.git/config", "changed"), want: true},
		"a repository that the first one's commondir names":   {repo: "hop1/.git", change: writes("hop3/.git/config", "changed"), want: true},
		"the last one of a chain":                             {repo: "hop1/.git", change: writes("hop4/.git/config", "changed"), want: true},
		"one too far away":                                    {repo: "hop1/.git", change: writes("hop5/.git/config", "changed")},
		"the configuration of a bare repository":              {repo: "bare", change: writes("bare/config", "changed"), want: true},
		"what else is in its directory":                       {repo: "bare", change: writes("bare/words", "x")},
		"a directory that is in it":                           {repo: "bare", change: writes("bare/src/words", "x")},
		"an attribute of a bare repository":                   {repo: "bare", change: writes("bare/attributes", "x"), want: true},
		"a hook of a bare repository":                         {repo: "bare", change: writes("bare/hooks/x", "x"), want: true},
		"the configuration of a workspace that is a bare one": {repo: ".", change: writes("config", "x"), want: true},
		"HEAD of a workspace that is a bare one":              {repo: ".", change: writes("HEAD", "x")},
		"hg's configuration":                                  {repo: "h/.hg", change: writes("h/.hg/hgrc", "changed"), want: true},
		"hg's state":                                          {repo: "h/.hg", change: writes("h/.hg/dirstate", "changed")},
		"another name of hg's state":                          {repo: "h/.hg", change: names("h/.hg/dirstate", "other")},
		"hg's lock":                                           {repo: "h/.hg", change: links("h/.hg/store/lock", "host:1")},
		"another symlink of hg":                               {repo: "h/.hg", change: links("h/.hg/store/data", "x"), want: true},
		"git's name of hg's lock":                             {repo: "r/.git", change: links("r/.git/wlock", "x"), want: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, l := lookAt(t, fingerprintFiles[tc.repo])
			if tc.repo == "r/.git" && len(tc.before) > 0 {
				_ = os.Remove(filepath.Join(dir, "r/.git/info"))
			}
			for _, c := range tc.before {
				if err := c(dir); err != nil {
					t.Fatal(err)
				}
			}
			sum := func() string {
				f := &fingerprint{whole: true, shallow: tc.shallow}
				if tc.skip != "" {
					f.skip = []string{tc.skip}
				}
				if err := l.addRepository(t.Context(), f, tc.repo); err != nil {
					t.Fatal(err)
				}
				return f.hashLines()
			}
			was := sum()
			if was == "" || sum() != was {
				t.Fatalf("control: %q, then %q", was, sum())
			}
			if err := tc.change(dir); err != nil {
				t.Fatal(err)
			}
			if now := sum(); now == "" || (now != was) != tc.want {
				t.Errorf("%q, then %q", was, now)
			}
		})
	}
}

// TestFingerprintsOfWhatIsTooLarge: something too large has no fingerprint.
func TestFingerprintsOfWhatIsTooLarge(t *testing.T) {
	f := &fingerprint{whole: true, lines: make([][32]byte, fingerprintEntries-1)}
	if f.addLine("x"); f.hashLines() == "" {
		t.Error("none with as many entries as count")
	}
	if f.addLine("x"); f.hashLines() != "" {
		t.Error("one with more entries than count")
	}
	dir, l := lookAt(t, map[string]string{"r/.git/config": "", "big/file": strings.Repeat("x", fingerprintBytes+2), "s/.git": "gitdir: ../r/.git"})
	if err := links("r/.git/info", "../../big")(dir); err != nil {
		t.Fatal(err)
	}
	for _, repo := range []string{"r/.git", "s/.git", "none/.git"} {
		f, err := l.computeFingerprint(t.Context(), repo)
		if err != nil || f.hashLines() != "" {
			t.Errorf("%s: %q, %v", repo, f.hashLines(), err)
		}
	}
	if err := links("r/.git/info", "../../deep")(dir); err != nil {
		t.Fatal(err)
	}
	for depth, whole := range map[int]bool{workspace.DefaultMaxDepth - 1: true, workspace.DefaultMaxDepth + 1: false} {
		if err := os.RemoveAll(filepath.Join(dir, "deep")); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(dir, "deep"+strings.Repeat("/d", depth)), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := l.computeFingerprint(t.Context(), "r/.git")
		if err != nil || (f.hashLines() != "") != whole {
			t.Errorf("with %d directories below each other: %q, %v", depth, f.hashLines(), err)
		}
	}
	if err := links("r/.git/info", "../../many")(dir); err != nil {
		t.Fatal(err)
	}
	if err := makes("many")(dir); err != nil {
		t.Fatal(err)
	}
	for i := range linkedEntries + 1 {
		if err := syscall.Mkfifo(filepath.Join(dir, "many", fmt.Sprint(i)), 0o600); err != nil { // which is not read
			t.Fatal(err)
		}
		if i < linkedEntries-1 {
			continue
		}
		f, err := l.computeFingerprint(t.Context(), "r/.git")
		if err != nil || (f.hashLines() == "") != (i == linkedEntries) {
			t.Errorf("with %d files: %q, %v", i+1, f.hashLines(), err)
		}
	}
}

// TestFingerprintOfALookThatEnds: wherever its context ends, it returns an error, no fingerprint, or the
// complete one.
func TestFingerprintOfALookThatEnds(t *testing.T) {
	_, l := lookAt(t, map[string]string{
		"r/.git/config": "", "r/.git/hooks/x": "", "r/.git/info/y": "", "s/.git": "gitdir: ../r/.git", "c/.git/commondir": "../../r/.git",
	})
	for _, repo := range []string{"r/.git", "s/.git", "c/.git", "none/.git"} {
		whole, err := l.computeFingerprint(t.Context(), repo)
		if err != nil {
			t.Fatal(err)
		}
		failed := 0
		for left, ended := 0, true; ended; left++ {
			inner, cancel := context.WithCancel(t.Context())
			f, err := l.computeFingerprint(&endingContext{inner, cancel, left, new(sync.Mutex)}, repo)
			ended = inner.Err() != nil
			cancel()
			if err != nil {
				failed++
			} else if sum := f.hashLines(); sum != "" && sum != whole.hashLines() {
				t.Errorf("%s, ended after %d: %q, not %q", repo, left, sum, whole.hashLines())
			}
		}
		if failed == 0 {
			t.Errorf("%s: no look failed", repo)
		}
	}
}

// TestFingerprintsOfAnyOrder: the order of a directory's entries does not count.
func TestFingerprintsOfAnyOrder(t *testing.T) {
	one, other := &fingerprint{whole: true}, &fingerprint{whole: true}
	for i := range 10 {
		one.addLine("%d", i)
		other.addLine("%d", 9-i)
	}
	if one.hashLines() != other.hashLines() {
		t.Errorf("%s and %s", one.hashLines(), other.hashLines())
	}
}

// TestFingerprintsOfWhatCannotBeRead: a repository with something unreadable has no fingerprint.
// Missing entries can be left out.
func TestFingerprintsOfWhatCannotBeRead(t *testing.T) {
	dir, l := lookAt(t, map[string]string{"r/.git/hooks/": "", "r/.git/gone": "", "file": ""})
	if err := links("r/.git/link", "../../file")(dir); err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, look := range map[string]func(context.Context, *fingerprint, string) string{"a symlink": l.describeTarget, "a file": l.hashContent} {
		f := &fingerprint{whole: true}
		if text := look(cancelled, f, "r/.git/link"); text != "" || f.whole {
			t.Errorf("%s: %q, whole %v", name, text, f.whole)
		}
	}
	var kept workspace.ScanEntry
	f := &fingerprint{whole: true}
	err := l.reader.Scan(t.Context(), "r/.git", workspace.ScanOptions{
		Visit: func(e *workspace.ScanEntry) (uint8, string) {
			if string(e.Name()) == "gone" {
				if err := os.Remove(filepath.Join(dir, "r/.git/gone")); err != nil {
					t.Error(err)
				}
				kept = *e
				l.addEntry(t.Context(), f, e, "r/.git/gone", "gone", "r/.git", false)
			}
			return 0, ""
		},
		Unread: func(string, error) {},
	})
	if err != nil || !f.whole || len(f.lines) != 0 {
		t.Errorf("a file that is gone: whole %v, %d lines, %v", f.whole, len(f.lines), err)
	}
	// The entry's directory is closed by now.
	if l.addEntry(t.Context(), f, &kept, "r/.git/gone", "gone", "r/.git", false); f.whole {
		t.Error("whole with an entry that can't be looked at")
	}

	below, err := unix.Open(filepath.Join(dir, "r/.git/hooks"), unix.O_DIRECTORY, 0)
	for range 20 { // longer than a path may be
		name := strings.Repeat("n", 250)
		err = errors.Join(err, unix.Mkdirat(below, name, 0o755))
		next, opened := unix.Openat(below, name, unix.O_DIRECTORY, 0)
		err = errors.Join(err, opened, unix.Close(below))
		below = next
	}
	if err = errors.Join(err, unix.Close(below)); err != nil {
		t.Fatal(err)
	}
	if f, err := l.computeFingerprint(t.Context(), "r/.git"); err != nil || f.hashLines() != "" {
		t.Errorf("a directory that can't be read: %q, %v", f.hashLines(), err)
	}
}

func TestConfigurationsOfFingerprints(t *testing.T) {
	_, l := lookAt(t, map[string]string{
		"r/.git/config": "", "r/.git/config.worktree": "", "r/.git/modules/m/config": "", "r/.git/hooks/other": "", "s/.git": "gitdir: ../r/.git",
	})
	for _, repo := range []string{"r/.git", "s/.git"} {
		l.entries = 0
		f, err := l.computeFingerprint(t.Context(), repo)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(f.configs)
		want := []string{"r/.git/config", "r/.git/config.worktree", "r/.git/modules/m/config"}
		if diff := cmp.Diff(want, f.configs); diff != "" || l.entries != 7 {
			t.Errorf("%s: %d entries; (-want +got):\n%s", repo, l.entries, diff)
		}
	}
}

// TestNamedDirectories reads the files in which one repository names another.
func TestNamedDirectories(t *testing.T) {
	_, l := lookAt(t, map[string]string{
		"a/relative": "gitdir: ../dir", "a/absolute": "gitdir: $DIR/dir", "a/lines": "gitdir: ../dir\r\n\n", "a/bare": "../dir\n",
		"a/other": "worktree: ../dir", "a/empty": "gitdir:", "a/file": "gitdir: ../a/other", "a/gone": "gitdir: ../gone", "a/top": "gitdir: ..",
		"a/outside": "gitdir: /etc", "dir/": "",
	})
	for file, want := range map[string]bool{
		"relative": true, "absolute": true, "lines": true, "bare": false, "other": false, "empty": false, "file": false, "gone": false, "top": false, "outside": false, "none": false,
	} {
		if dir, ok := l.readNamedDir(t.Context(), "a/"+file, "gitdir:"); ok != want || ok && dir != "dir" {
			t.Errorf("%s: %q, %v", file, dir, ok)
		}
	}
	if dir, ok := l.readNamedDir(t.Context(), "a/bare", ""); !ok || dir != "dir" {
		t.Errorf("without a prefix: %q, %v", dir, ok)
	}
}
