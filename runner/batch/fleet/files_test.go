package fleet

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/results"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
)

// smallBounds are easily exceeded.
var smallBounds = archiveBounds{Bounds: archive.Bounds{Entries: 20, Bytes: 1 << 20, Steps: 200}, packed: 1 << 20, result: 4 << 10, patch: 4 << 10}

// entry is a file of an archive, a symlink if Linkname is set.
type entry struct {
	tar.Header
	text string
}

func zipped(t testing.TB, list ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, e := range list {
		if e.Typeflag == 0 {
			e.Typeflag = tar.TypeReg
		}
		e.Mode, e.Size = e.Mode|0o644, int64(len(e.text))
		must(t, w.WriteHeader(&e.Header))
		_, err := io.WriteString(w, e.text)
		must(t, err)
	}
	must(t, errors.Join(w.Close(), z.Close()))
	return b.Bytes()
}

func fileEntry(name, text string) entry { return entry{tar.Header{Name: name}, text} }

func linkEntry(name, target string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}, ""}
}

var resultEntry = fileEntry(batch.ResultFile, `{"schema_version":1,"task":"task-0","agent":"nop","attempt":1,"outcome":"passed"}`)

// hostileArchives returns archives that no worker of Caisson makes.
func hostileArchives(t testing.TB) map[string][]byte {
	whole := zipped(t, resultEntry, fileEntry("agent/log", strings.Repeat("text ", 1000)))
	bomb := zipped(t, resultEntry, fileEntry("agent/much", strings.Repeat("x", 2<<20)))
	many := []entry{resultEntry}
	for range 30 {
		many = append(many, fileEntry("agent/x", ""))
	}
	var padded bytes.Buffer
	z := gzip.NewWriter(&padded)
	_, err := z.Write(make([]byte, 8<<20))
	must(t, errors.Join(err, z.Close()))
	return map[string][]byte{
		"nothing":                       nil,
		"text":                          []byte("junk"),
		"cut":                           whole[:len(whole)/2],
		"cut at the end":                whole[:len(whole)-4],
		"another checksum":              append(bytes.Clone(whole[:len(whole)-8]), 1, 2, 3, 4, 5, 6, 7, 8),
		"no result":                     zipped(t, fileEntry("agent/log", "")),
		"result is no JSON":             zipped(t, fileEntry(batch.ResultFile, "{")),
		"result is of no trial":         zipped(t, fileEntry(batch.ResultFile, strings.Replace(resultEntry.text, "passed", "cancelled", 1))),
		"reward is too large":           zipped(t, fileEntry(batch.ResultFile, strings.Replace(resultEntry.text, "}", `,"reward":1.7e308}`, 1))),
		"result is a symlink":           zipped(t, linkEntry(batch.ResultFile, "../outside/result")),
		"result is a directory":         zipped(t, entry{tar.Header{Name: batch.ResultFile + "/", Typeflag: tar.TypeDir}, ""}),
		"result is large":               zipped(t, fileEntry(batch.ResultFile, strings.Repeat(" ", 5000)+resultEntry.text)),
		"part of the result is a link":  zipped(t, resultEntry, linkEntry(batch.ResultFile+".part", "../outside/secret")),
		"patch is a symlink":            zipped(t, resultEntry, linkEntry(batch.PatchFile, "/etc/passwd")),
		"patch is large":                zipped(t, resultEntry, fileEntry(batch.PatchFile, strings.Repeat(" ", 5000))),
		"session is a symlink":          zipped(t, resultEntry, linkEntry(batch.SessionDir, "/root")),
		"records are a symlink":         zipped(t, resultEntry, linkEntry(batch.SessionDir+"/records.jsonl", "/etc/passwd")),
		"artifacts are a symlink":       zipped(t, resultEntry, linkEntry(batch.ArtifactsDir, "../outside")),
		"state of a step is a symlink":  zipped(t, resultEntry, linkEntry(batch.StepsDir+"/a/"+batch.StateFile, "/etc/passwd")),
		"steps are a symlink":           zipped(t, resultEntry, linkEntry(batch.StepsDir, "../outside")),
		"through a symlink":             zipped(t, resultEntry, linkEntry("agent/out", "../../outside"), fileEntry("agent/out/new", "")),
		"absolute":                      zipped(t, resultEntry, fileEntry("/tmp/caisson-absolute", "")),
		"dots":                          zipped(t, resultEntry, fileEntry("../outside/new", "")),
		"dots inside":                   zipped(t, resultEntry, fileEntry("agent/../../outside/new", "")),
		"hard link out":                 zipped(t, resultEntry, entry{tar.Header{Name: "agent/h", Typeflag: tar.TypeLink, Linkname: "../outside/secret"}, ""}),
		"device":                        zipped(t, resultEntry, entry{tar.Header{Name: "agent/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, ""}),
		"pipe":                          zipped(t, resultEntry, entry{tar.Header{Name: "agent/pipe", Typeflag: tar.TypeFifo}, ""}),
		"long name":                     zipped(t, resultEntry, fileEntry(strings.Repeat("a/", 3000)+"x", "")),
		"deep name":                     zipped(t, resultEntry, fileEntry(strings.Repeat("a/", 300)+"x", "")),
		"more bytes than the bound":     bomb,
		"more entries than the bound":   zipped(t, many...),
		"endless after the end":         append(bytes.Clone(whole), padded.Bytes()...),
		"a directory where the file is": zipped(t, fileEntry("a", ""), fileEntry("a/b", "")),
	}
}

// TestHostileArchives: archives that no worker makes are damaged, and nothing outside
// their directory is read or changed.
func TestHostileArchives(t *testing.T) {
	for name, text := range hostileArchives(t) {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			dir, secret := filepath.Join(top, "trial"), filepath.Join(top, "outside", "secret")
			must(t, errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(filepath.Dir(secret), 0o755), os.WriteFile(secret, []byte("secret"), 0o600)))
			must(t, os.WriteFile(filepath.Join(top, "outside", "result"), []byte(resultEntry.text), 0o600))
			r, err := readTrial(bytes.NewReader(text), dir, smallBounds)
			if _, ok := errors.AsType[*damageError](err); !ok {
				t.Errorf("%+v, %v", r, err)
			}
			if text, err := os.ReadFile(secret); err != nil || string(text) != "secret" {
				t.Errorf("outside: %q, %v", text, err)
			}
			if entries, err := os.ReadDir(filepath.Dir(secret)); err != nil || len(entries) != 2 {
				t.Errorf("outside: %v, %v", entries, err)
			}
		})
	}
}

// failingReader ends with an error other than io.EOF.
type failingReader struct{ r io.Reader }

func (f failingReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if errors.Is(err, io.EOF) {
		err = errors.New("connection reset")
	}
	return n, err
}

// TestReadTrial: files of agents and verifiers arrive without set-ID bits and without
// symlinks that lead out. A failing store is no damage.
func TestReadTrial(t *testing.T) {
	setID := fileEntry("agent/setid", "x")
	setID.Mode = 0o6755
	text := zipped(t, resultEntry, setID, linkEntry("artifacts/bin/python", "/usr/bin/python3"), linkEntry("steps/a/verifier/reward.txt", "/etc/passwd"), linkEntry("control/verifier/reward.txt", "/etc/passwd"), linkEntry("artifacts/log", "../agent/a"), fileEntry("agent/A", "1"), fileEntry("agent/a", "2"))
	dir := t.TempDir()
	r, err := readTrial(bytes.NewReader(text), dir, smallBounds)
	if err != nil || r.Outcome != batch.Passed {
		t.Fatalf("%+v, %v", r, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "agent/setid")); err != nil || info.Mode() != 0o755 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for name, want := range map[string]string{"artifacts/bin/python": "", "steps/a/verifier/reward.txt": "", "control/verifier/reward.txt": "", "artifacts/log": "../agent/a"} {
		if target, _ := os.Readlink(filepath.Join(dir, name)); target != want {
			t.Errorf("%s leads to %q, want %q", name, target, want)
		}
	}
	for _, n := range []int{0, 5, len(text) / 2, len(text) - 1} {
		_, err := readTrial(failingReader{bytes.NewReader(text[:n])}, t.TempDir(), smallBounds)
		if _, ok := errors.AsType[*storeError](err); !ok {
			t.Errorf("a store that fails after %d bytes: %v", n, err)
		}
	}
}

// FuzzReadTrial: no archive leads outside, exceeds the bounds or makes a special file.
func FuzzReadTrial(f *testing.F) {
	for _, text := range hostileArchives(f) {
		f.Add(text)
	}
	f.Add(zipped(f, resultEntry, fileEntry("agent/a", "1"), linkEntry("agent/b", "a")))
	f.Fuzz(func(t *testing.T, text []byte) {
		top := t.TempDir()
		dir, outside := filepath.Join(top, "trial"), filepath.Join(top, "outside")
		must(t, errors.Join(os.Mkdir(dir, 0o755), os.Mkdir(outside, 0o755)))
		_, err := readTrial(bytes.NewReader(text), dir, smallBounds)
		if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
			t.Errorf("outside: %v, %v", entries, err)
		}
		var size, names int64
		must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, walkErr error) error {
			if walkErr != nil {
				return fs.SkipDir // closed to its owner
			}
			info, infoErr := d.Info()
			must(t, infoErr)
			names++
			switch {
			case info.Mode().IsRegular():
				size += info.Size()
			case !d.IsDir() && d.Type() != fs.ModeSymlink:
				t.Errorf("%s is %s", path, info.Mode())
			}
			return nil
		}))
		if names > smallBounds.Entries+3 || size > smallBounds.Entries*smallBounds.Bytes {
			t.Errorf("%d names, %d bytes", names, size)
		}
		if info, statErr := os.Lstat(filepath.Join(dir, batch.ResultFile)); err == nil && (statErr != nil || !info.Mode().IsRegular()) {
			t.Errorf("read a result that is %v, %v", info, statErr)
		}
	})
}

// TestPackTrial: a trial's files arrive. If they exceed the bounds, what the agent left is
// missing, but not the trajectory, or all but the result.
func TestPackTrial(t *testing.T) {
	for name, c := range map[string]struct {
		write   func(dir string) error
		missing string
	}{
		"small": {func(dir string) error { return os.WriteFile(filepath.Join(dir, "agent", "log"), []byte("x"), 0o600) }, ""},
		"special": {func(dir string) error {
			return errors.Join(os.WriteFile(filepath.Join(dir, "agent", "log"), []byte("x"), 0o600), syscall.Mkfifo(filepath.Join(dir, "agent", "pipe"), 0o600))
		}, ""},
		"large state": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, batch.StateFile), make([]byte, 2<<20), 0o600)
		}, "its state.tar"},
		"large": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "agent", "log"), make([]byte, 2<<20), 0o600)
		}, "its agent"},
		"symlink": {func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, batch.PatchFile)) }, "all but its result"},
		"many": {func(dir string) error {
			var err error
			for i := range 30 {
				err = errors.Join(err, os.Mkdir(filepath.Join(dir, "agent", strings.Repeat("x", i+1)), 0o755))
			}
			return err
		}, "its agent"},
		"deep": {func(dir string) error {
			return os.MkdirAll(filepath.Join(dir, "agent", strings.Repeat("x/", 15)), 0o755)
		}, "its agent"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, errors.Join(os.Mkdir(filepath.Join(dir, "agent"), 0o755), os.WriteFile(filepath.Join(dir, batch.ResultFile), []byte(resultEntry.text), 0o600), os.WriteFile(filepath.Join(dir, "agent", batch.TrajectoryFile), []byte("{}"), 0o600), c.write(dir)))
			f, err := os.Create(filepath.Join(t.TempDir(), "archive"))
			must(t, err)
			defer f.Close()
			size, missing, err := packTrial(f, dir, filepath.Join(t.TempDir(), "scratch"), smallBounds)
			if err != nil || missing != c.missing {
				t.Errorf("missing: %q, %v", missing, err)
			}
			if info, err := f.Stat(); err != nil || info.Size() != size {
				t.Errorf("%d bytes: want %d, %v", size, info.Size(), err)
			}
			_, err = f.Seek(0, io.SeekStart)
			must(t, err)
			to := t.TempDir()
			if r, err := readTrial(f, to, smallBounds); err != nil || r.Outcome != batch.Passed {
				t.Errorf("%+v, %v", r, err)
			}
			if _, err := os.Stat(filepath.Join(to, "agent", batch.TrajectoryFile)); (err == nil) != (missing != "all but its result") {
				t.Errorf("the trajectory: %v", err)
			}
			if _, err := os.Stat(filepath.Join(to, "agent", "log")); (err == nil) != (name == "small" || name == "special") {
				t.Errorf("log: %v", err)
			}
		})
	}
}

// faultyStore is a store whose results sometimes can't be read.
type faultyStore struct {
	results.Store
	mu    sync.Mutex
	fails int // how often reading fails
}

func (s *faultyStore) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	r, err := s.Store.Get(ctx, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.fails == 0 || !strings.HasPrefix(name, trialsDir) {
		return r, err
	}
	s.fails--
	if s.fails%2 == 0 {
		return nil, errors.Join(errors.New("503"), r.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{failingReader{io.LimitReader(r, 40)}, r}, nil
}

// TestDamagedResults: a damaged result is left out, and named once all others are
// collected. If it is removed, the trial runs again. A store that fails for long
// damages nothing.
func TestDamagedResults(t *testing.T) {
	s := startServer(t, "one", 0, "")
	b := newBatch(t, s.ClientURL(), testTasks(4, 1))
	dir := b.store.String()
	b.store = &faultyStore{Store: b.store, fails: 4 * maxFailures}
	other, err := json.Marshal(batch.Result{Key: batch.Key{Task: "task-1", Agent: batch.Nop, Attempt: 1}, Checksum: "sha256:other", Outcome: batch.Passed})
	must(t, err)
	for i, text := range [][]byte{zipped(t, resultEntry)[:20], zipped(t, fileEntry(batch.ResultFile, string(other)))} {
		must(t, putBytes(t.Context(), b.store, objectOf(batch.Key{Task: b.tasks[i].ID, Agent: batch.Nop, Attempt: 1}), text))
	}
	run := func() (batch.Totals, error) {
		var workers sync.WaitGroup
		defer workers.Wait()
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		before, _, err := LatestRun(ctx, b.store)
		workers.Go(func() {
			for {
				if r, _, nextErr := LatestRun(ctx, b.store); ctx.Err() != nil || nextErr == nil && (err != nil || r.number > before.number) {
					break
				}
			}
			_ = b.work(ctx, "w", 1, trialOf(0, b.log))
		})
		return b.coordinate(ctx)
	}
	totals, err := run()
	damaged, ok := errors.AsType[*DamagedError](err)
	if !ok || len(damaged.Objects) != 2 || totals.Ran != 2 || len(totals.NotRun) != 2 {
		t.Fatalf("%+v, %v", totals, err)
	}
	for _, name := range damaged.Objects {
		must(t, os.Remove(filepath.Join(dir, name)))
	}
	totals, err = run()
	if err != nil || totals.Ran != 2 || totals.Kept != 2 {
		t.Fatalf("%+v, %v", totals, err)
	}
	b.check()
}
