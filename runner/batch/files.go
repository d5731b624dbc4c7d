package batch

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/runner/internal/diskwatch"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/archive"
)

// Bounds on what is copied out of a sandbox.
const (
	maxStateBytes    = 4 << 30 // an archive of changes
	maxCollected     = 1 << 30 // the files of one directory
	maxCollectedFile = 100_000
	// unpackReserve is the room in bytes that they leave on the disk: the result and the
	// records of all trials need some.
	unpackReserve = 128 << 20
	maxHidden     = 256 << 20 // bytes of memory to remember hidden files, such as those in caches
	transferTime  = 10 * time.Minute
)

var errTransferTime = fmt.Errorf("moving files took longer than %s", transferTime)

type statusError struct {
	what   string
	status sandbox.ExitStatus
	output string
}

func (e *statusError) Error() string {
	text := e.what + ": " + e.status.String()
	if out := strings.TrimSpace(e.output); out != "" {
		text += ": " + out
	}
	return text
}

// executeCommand runs a command of the harness. If its exit status is not 0, it returns
// a [statusError].
func executeCommand(ctx context.Context, s *runner.Session, what string, c runner.UserCommand) error {
	ctx, cancel := context.WithTimeoutCause(ctx, transferTime, errTransferTime)
	defer cancel()
	stderr := limits.Tail{Size: maxTail}
	if c.Stderr == nil {
		c.Stderr = &stderr
	} else {
		c.Stderr = io.MultiWriter(&stderr, c.Stderr)
	}
	r, err := s.Exec(ctx, c)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%s: %w", what, cause)
	}
	if !r.Status.Success() {
		return &statusError{what, r.Status, strings.ToValidUTF8(stderr.String(), "�")}
	}
	return nil
}

func hasCode(err error, code int) bool {
	e, ok := errors.AsType[*statusError](err)
	return ok && e.status == sandbox.ExitStatus{Code: code}
}

// maxTail bounds the kept output of a command, in bytes.
const maxTail = 1000

// leftOut names the agent's files that were not copied, such as symlinks that lead out.
// As a writer, it takes the standard error of a command that reports them.
type leftOut struct {
	names []string
	line  []byte
}

const (
	maxLeftOut     = 100
	maxLeftOutText = 2000 // bytes of one name
)

func (l *leftOut) add(text string) {
	switch {
	case len(l.names) < maxLeftOut:
		l.names = append(l.names, strings.ToValidUTF8(text[:min(len(text), maxLeftOutText)], "�"))
	case len(l.names) == maxLeftOut:
		l.names = append(l.names, "and more")
	}
}

// Write collects the lines that name left-out files.
func (l *leftOut) Write(p []byte) (int, error) {
	for _, b := range p {
		if b != '\n' {
			if len(l.line) < 8*maxLeftOutText { // names are quoted
				l.line = append(l.line, b)
			}
			continue
		}
		if quoted, ok := strings.CutPrefix(string(l.line), archive.LeftOutPrefix); ok {
			if text, err := strconv.Unquote(quoted); err == nil {
				quoted = text
			}
			l.add(quoted)
		}
		l.line = l.line[:0]
	}
	return len(p), nil
}

// ruleFor returns the rule for symlinks in files copied from the path from: they may
// lead only to files that are copied too.
func (l *leftOut) ruleFor(from, name string) *archive.LinkRule {
	return &archive.LinkRule{From: from, LeftOut: func(link, target string) {
		l.add(path.Join(from, strings.TrimPrefix(link, name)) + " -> " + target)
	}}
}

// upload is a host directory to copy into a sandbox.
type upload struct {
	// to is the absolute path of its content in the sandbox.
	to string
	// from is the directory, or "" for an empty one.
	from string
	// executable is a file in it to make executable, or "".
	executable string
	// skip reports whether to leave out a file or directory; it may be nil.
	skip func(name string) bool
}

// uploadList returns the directories to copy. It is called once the sandbox takes them,
// and may block. It may be nil.
type uploadList func() ([]upload, error)

func uploads(list ...upload) uploadList {
	return func() ([]upload, error) { return list, nil }
}

func (l uploadList) writeTo(w *archive.Writer) error {
	if l == nil {
		return nil
	}
	list, err := l()
	for _, u := range list {
		err = errors.Join(err, u.writeTo(w))
	}
	return err
}

// streamArchive returns a reader of the archive that fill writes.
func streamArchive(fill func(w *archive.Writer) error) *io.PipeReader {
	read, write := io.Pipe()
	go func() {
		w := archive.NewWriter(write)
		err := fill(w)
		write.CloseWithError(errors.Join(err, w.Close()))
	}()
	return read
}

// uploadAll copies directories into a sandbox in which the user is root.
func uploadAll(ctx context.Context, s *runner.Session, list uploadList) error {
	read := streamArchive(list.writeTo)
	err := executeCommand(ctx, s, "bring files into the sandbox", runner.UnpackCommand("/", read))
	return errors.Join(err, read.Close())
}

// writeTo adds the directory to an archive, including symlinks. Special files are an
// error.
func (u upload) writeTo(w *archive.Writer) error {
	top := strings.TrimPrefix(u.to, "/")
	if u.from == "" {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: top + "/", Mode: 0o755, Format: tar.FormatPAX})
	}
	return filepath.WalkDir(u.from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(u.from, file)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case u.skip == nil || !u.skip(rel):
		case d.IsDir():
			return filepath.SkipDir
		default:
			return nil
		}
		h := &tar.Header{Name: path.Join(top, rel), Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
		if u.executable != "" && rel == u.executable {
			h.Mode |= 0o111
		}
		switch info.Mode().Type() {
		case fs.ModeDir:
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
			return w.WriteHeader(h)
		case fs.ModeSymlink:
			h.Typeflag = tar.TypeSymlink
			if h.Linkname, err = os.Readlink(file); err != nil {
				return err
			}
			return w.WriteHeader(h)
		case 0:
			h.Typeflag, h.Size = tar.TypeReg, info.Size()
			return addContent(w, h, file)
		}
		return fmt.Errorf("%s is a special file", file)
	})
}

func addContent(w *archive.Writer, h *tar.Header, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	return w.AddFile(h, f)
}

// downloadPath copies a file or directory of a sandbox into a host directory, which it
// makes, under a name. A missing file is no error. Other hard links of an excluded file
// stay.
func downloadPath(ctx context.Context, s *runner.Session, from, name, to string, exclude []string, left *leftOut) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	file := to + ".tar"
	err := saveArchive(ctx, s, "bring "+from+" out of the sandbox", file, func(w io.Writer) runner.UserCommand { return runner.PackCommand(from, name, w) })
	if err == nil {
		err = unpackFiltered(ctx, file, to, archive.UnpackOptions{Name: name, Links: left.ruleFor(from, name)}, func(w *archive.Writer, f *os.File) error {
			return copyVisible(w, f, func(h *tar.Header) bool { return isExcluded(exclude, h.Name) }, maxHidden)
		})
	}
	removed := os.Remove(file)
	if hasCode(err, archive.StatusNoFile) {
		return removed
	}
	return cmp.Or(err, removed)
}

// unpackFiltered passes an archive through filter and unpacks the result below a
// directory. It stops when ctx ends, and with a [*limits.ExceededError] before an agent's
// files fill the disk.
func unpackFiltered(ctx context.Context, file, to string, o archive.UnpackOptions, filter func(w *archive.Writer, f *os.File) error) error {
	ctx, stop := diskwatch.New(unpackReserve, diskwatch.RoomAt(to), nil).WatchContext(ctx)
	defer stop()
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	o.Bounds, o.Done = archive.Bounds{Entries: maxCollectedFile, Bytes: maxCollected, Steps: archive.MaxSteps}, ctx.Done()
	read := streamArchive(func(w *archive.Writer) error {
		defer func() { _ = f.Close() }() // only read
		return filter(w, f)
	})
	defer context.AfterFunc(ctx, func() { _ = read.Close() })() // also within a large file
	err = archive.UnpackWith(read, to, o)
	if full := context.Cause(ctx); full != nil {
		err = full
	}
	return errors.Join(err, read.Close())
}

// isExcluded reports whether a pattern matches name, one of its parent directories, or
// the last element of these.
func isExcluded(patterns []string, name string) bool {
	name = strings.TrimSuffix(name, "/")
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		for n := name; n != ""; n = n[:max(0, strings.LastIndexByte(n, '/'))] {
			if ok, _ := path.Match(pattern, path.Base(n)); ok {
				return true
			}
			if ok, _ := path.Match(pattern, n); ok {
				return true
			}
		}
		return false
	})
}

// isOfArtifact reports whether an entry that an agent made in /logs/artifacts takes the
// place of one of the task's artifacts, which only the artifact's source may fill, or
// is excluded by it.
func isOfArtifact(list []task.Artifact, workdir string, h *tar.Header) bool {
	name := path.Clean("/" + h.Name)
	return slices.ContainsFunc(list, func(a task.Artifact) bool {
		place := "/" + a.Name()
		if isWithin(name, place) || isWithin(place, name) && h.Typeflag != tar.TypeDir {
			return true
		}
		rest, inside := strings.CutPrefix(logsDir+"/artifacts"+name, a.Path(workdir))
		return inside && (rest == "" || rest[0] == '/') && isExcluded(a.Exclude, a.Name()+rest)
	})
}

// copyEntries copies an archive's entries that keep accepts. keep may change them.
func copyEntries(out *archive.Writer, r io.Reader, keep func(h *tar.Header) bool) error {
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			_, _ = io.Copy(io.Discard, r) // let the sender write the rest
			return nil
		}
		if err != nil {
			return err
		}
		if !keep(h) {
			continue
		}
		h.Format = tar.FormatPAX
		if os.Geteuid() != 0 { // otherwise files that their owner made unreadable couldn't be read here
			switch h.Typeflag {
			case tar.TypeDir:
				h.Mode |= 0o700
			case tar.TypeReg:
				h.Mode |= 0o400
			}
		}
		if err := out.Copy(h, in); err != nil {
			return err
		}
	}
}

func saveState(ctx context.Context, s *runner.Session, since, layer time.Time, dirs []string, file string) error {
	err := saveArchive(ctx, s, "collect what the agent changed", file, func(w io.Writer) runner.UserCommand {
		return runner.PackChangesCommand(since, layer, dirs, w)
	})
	if hasCode(err, archive.StatusIncomplete) { // even their owner can't read some files
		return nil
	}
	if err != nil {
		err = errors.Join(err, os.Remove(file)) // a partial file is useless and can be large
	}
	return err
}

func saveArchive(ctx context.Context, s *runner.Session, what, file string, command func(w io.Writer) runner.UserCommand) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := &archive.BoundedWriter{W: f, Left: maxStateBytes}
	err = executeCommand(ctx, s, what, command(w))
	if w.Err != nil { // the command doesn't report it
		err = fmt.Errorf("%s, at most %d MiB: %w", what, maxStateBytes>>20, w.Err)
	}
	if closed := f.Close(); closed != nil {
		return closed
	}
	return err
}

// extractState unpacks the part of an archive of changes below a sandbox directory into
// a host directory, which it makes. skip may be nil.
func extractState(ctx context.Context, file, from, to string, skip func(h *tar.Header) bool, left *leftOut) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	below := strings.TrimPrefix(from, "/") + "/"
	keep := func(h *tar.Header) bool {
		name, inside := strings.CutPrefix(h.Name, below)
		if h.Typeflag == tar.TypeLink && inside {
			target, ok := strings.CutPrefix(h.Linkname, below)
			if ok = ok && (skip == nil || !skip(&tar.Header{Name: target})); !ok {
				left.add("/" + h.Name + ", another name of /" + h.Linkname)
			}
			h.Linkname, inside = target, ok
		}
		h.Name = name
		return inside && name != "" && (skip == nil || !skip(h))
	}
	return unpackFiltered(ctx, file, to, archive.UnpackOptions{Links: left.ruleFor(from, "")}, func(w *archive.Writer, f *os.File) error {
		return copyEntries(w, f, keep)
	})
}

// restoreState makes the changes in a file, which may be "", in another sandbox of the
// same environment, except those that hidden accepts. Then it copies the directories in
// list. Symlinks may lead to files that are copied too, and to the sandbox's files in
// the directories within.
func restoreState(ctx context.Context, s *runner.Session, file string, hidden func(h *tar.Header) bool, within []string, list uploadList, left *leftOut) error {
	f, err := os.Open(cmp.Or(file, os.DevNull))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	copied := make(chan struct{})    // closed when f is no longer read
	read := streamArchive(func(w *archive.Writer) error {
		defer close(copied)
		err := copyVisible(w, f, hidden, maxHidden)
		return errors.Join(err, list.writeTo(w))
	})
	command := runner.UnpackChangesCommand("/", within, harnessDirs, read)
	command.Stderr = left
	err = executeCommand(ctx, s, "restore what the agent changed", command)
	err = errors.Join(err, read.Close())
	<-copied
	return err
}

// headerBytes is about the size of a header without names.
const headerBytes = 512

// copyVisible copies the entries of an archive of changes, except those that hidden
// accepts. If only some hard links of a file are hidden, such as those in a package
// manager's cache, the file keeps the others. most bounds the memory, in bytes, for
// remembering hidden files. Beyond it, the other links of a hidden file lead to no file.
func copyVisible(out *archive.Writer, f *os.File, hidden func(h *tar.Header) bool, most int) error {
	type content struct {
		h      tar.Header
		offset int64
	}
	left := map[string]content{} // by the hidden file's name
	added := map[string]string{} // another link to it
	var failed error
	err := copyEntries(out, f, func(h *tar.Header) bool {
		if hidden(h) {
			most -= 2*len(h.Name) + headerBytes // PAX records repeat the name
			if h.Typeflag == tar.TypeReg && most >= 0 {
				offset, err := f.Seek(0, io.SeekCurrent)
				if err != nil {
					failed = cmp.Or(failed, err)
					return false
				}
				left[h.Name] = content{*h, offset}
			}
			return false
		}
		c, linked := left[h.Linkname]
		if h.Typeflag != tar.TypeLink || !linked {
			return true
		}
		if name, again := added[h.Linkname]; again {
			h.Linkname = name
			return true
		}
		added[h.Linkname] = h.Name
		c.h.Name, c.h.Format = h.Name, tar.FormatPAX
		failed = errors.Join(failed, out.CopyPacked(&c.h, io.NewSectionReader(f, c.offset, math.MaxInt64-c.offset)))
		return false
	})
	return errors.Join(failed, err)
}

// output is a file for the beginning of a verifier's or an agent's output, without
// secrets. It is safe for concurrent use.
type output struct {
	mu   sync.Mutex
	file *os.File
	text *redact.Writer
}

// maxOutput bounds the kept output of a verifier or an agent, in bytes.
const maxOutput = 16 << 20

func (t *Trials) createOutput(path string) (*output, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	return &output{file: f, text: t.redactor.NewWriter(&cappedWriter{f, maxOutput})}, err
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) Close() error { return errors.Join(o.text.Close(), o.file.Close()) }

type cappedWriter struct {
	w    io.Writer
	left int64
}

func (c *cappedWriter) Write(p []byte) (int, error) {
	n := min(int64(len(p)), c.left)
	c.left -= n
	if _, err := c.w.Write(p[:n]); err != nil {
		return 0, err
	}
	return len(p), nil
}
