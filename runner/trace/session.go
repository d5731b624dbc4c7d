package trace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// Session is the place of one session's records. It holds nothing open.
type Session struct {
	// ID is the session's, or the name of a file that was named by its path.
	ID string
	// Dir is the folder, which long values are below.
	Dir string
	// Path is the file of the records.
	Path string
	// Pruned says that retention has left the audit records alone.
	Pruned bool
}

// Last is the name of the session that began last.
const Last = "last"

// Find gives the session that name means: an id or the beginning of one that no
// other session shares, [Last], or the path of a session's folder or trace, which
// has a separator or ends in .jsonl. Its errors are a [*runner.Error] with status 42.
func Find(stateDir, name string) (Session, error) {
	if strings.ContainsRune(name, filepath.Separator) || strings.HasSuffix(name, ".jsonl") {
		return at(name)
	}
	names, err := sessions(stateDir)
	if err != nil {
		return Session{}, err
	}
	if name == Last {
		for _, id := range slices.Backward(names) {
			if s, err := in(sessiondir.Path(stateDir, id)); err == nil {
				return s, nil
			}
		}
		return Session{}, inputError("there are no sessions yet", "caisson run makes one.", nil)
	}
	names = slices.DeleteFunc(names, func(id string) bool {
		return !strings.HasPrefix(id, name) && !strings.HasPrefix(id, "ses_"+name)
	})
	switch len(names) {
	case 0:
		return Session{}, inputError(fmt.Sprintf("there is no session %s", name), "caisson trace ls lists them.", nil)
	case 1:
		return in(sessiondir.Path(stateDir, names[0]))
	}
	return Session{}, inputError(fmt.Sprintf("%d sessions begin with %s", len(names), name), "Write more of the id: "+names[0]+" is one of them.", nil)
}

// sessions are the ids of all sessions, the oldest first.
func sessions(stateDir string) ([]string, error) {
	dir := filepath.Dir(sessiondir.Path(stateDir, "x"))
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, inputError("the sessions in "+dir+" can't be listed: "+err.Error(), "Set XDG_STATE_HOME to the folder that has them.", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), "ses_") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// in is the session whose folder dir is.
func in(dir string) (Session, error) {
	s := Session{ID: filepath.Base(dir), Dir: dir, Path: filepath.Join(dir, record.TraceFile)}
	if _, err := os.Lstat(s.Path); err == nil {
		return s, nil
	}
	if path := filepath.Join(dir, record.AuditFile); exists(path) {
		s.Path, s.Pruned = path, true
		return s, nil
	}
	return s, inputError("the session "+s.ID+" has no records", "It was ended before it wrote any, or somebody has removed them.", fs.ErrNotExist)
}

// at is the session of a folder or a file.
func at(path string) (Session, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(path); err == nil && info.IsDir() {
			return in(path)
		}
	}
	if err != nil {
		return Session{}, inputError("the trace can't be read: "+err.Error(), "Name a session, its folder or its trace.jsonl.", err)
	}
	dir, name := filepath.Split(path)
	dir = filepath.Clean(dir)
	s := Session{ID: name, Dir: dir, Path: path, Pruned: name == record.AuditFile}
	if name == record.TraceFile || name == record.AuditFile {
		s.ID = filepath.Base(dir)
	}
	return s, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func inputError(cause, mend string, err error) error {
	return &runner.Error{Status: runner.ExitInput, Problem: record.Problem{Cause: cause, Mend: mend}, Err: err}
}

// Reader reads the records of one session, in order, and verifies them; see
// [record.Reader]. Whoever opened it closes it.
type Reader struct {
	*record.Reader
	file *os.File
}

// Open opens the records. A session that runs may be read: the end is then what
// is written by now. Its errors are a [*runner.Error] with status 42.
func (s Session) Open() (*Reader, error) {
	f, err := openRegular(s.Path)
	if err != nil {
		return nil, inputError("the records of "+s.ID+" can't be read: "+err.Error(), "Name a session, its folder or its trace.jsonl.", err)
	}
	return &Reader{record.NewReader(f), f}, nil
}

// resume goes on behind the last good record, with what was added to the file.
func (r *Reader) resume() {
	at := r.Position()
	r.Reader = record.ResumeReader(io.NewSectionReader(r.file, at.Offset, math.MaxInt64-at.Offset), at)
}

// Close closes the file.
func (r *Reader) Close() error { return r.file.Close() }

// openRegular opens a file to read it, and nothing that would wait or act.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
