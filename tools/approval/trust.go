package approval

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits/state"
)

// TrustedWorkspace is a workspace whose own configuration counts, bound to the
// trusted files.
//
//	{"workspace":"/home/me/project","files":[{"path":".caisson/config.yaml","sha256":"9f86…"}],"created":"2026-11-20T10:00:00Z"}
type TrustedWorkspace struct {
	// Workspace is the absolute host path.
	Workspace string `json:"workspace"`
	// Files are all of the workspace's files that count, sorted by path. If one is
	// added, removed or changed, the trust ends.
	Files []TrustedFile `json:"files"`
	// Instructions are the trusted instruction files, sorted by path. A new or
	// changed one is not trusted, which affects nothing else.
	Instructions []TrustedFile `json:"instructions,omitempty"`
	// Created is when the entry was stored, in UTC.
	Created time.Time `json:"created"`
}

// TrustedFile is one file of a workspace as it was trusted.
type TrustedFile struct {
	// Path is relative to the workspace and slash-separated.
	Path string `json:"path"`
	// SHA256 is the content's hash in hex.
	SHA256 string `json:"sha256"`
}

// Covers reports whether the trust is for exactly these files.
func (t TrustedWorkspace) Covers(files []TrustedFile) bool { return slices.Equal(t.Files, files) }

// Trust is the file of trusted workspaces ($XDG_STATE_HOME/caisson/trust.json). It
// must be outside every workspace and is kept like [Grants]: read anew each time
// under a lock, and replaced as a whole. A corrupt file is moved aside and counts
// as empty, with a [CorruptError]. The zero value is not useful.
type Trust struct{ file stateFile[trustFile] }

type trustFile struct {
	Version    int                `json:"version"`
	Workspaces []TrustedWorkspace `json:"workspaces"`
}

// NewTrust returns the trust in a file. Neither the file nor its directory need
// exist.
func NewTrust(path string) *Trust {
	return &Trust{stateFile[trustFile]{
		path: path, what: "trusted workspaces", now: time.Now, parse: parseTrust,
		entries: func(f trustFile) []any { return anyOf(f.Workspaces) },
	}}
}

// As returns the same file, changed on behalf of a.
func (t *Trust) As(a Author) *Trust {
	other := *t
	other.file.author = a
	return &other
}

// Find returns a workspace's entry, if there is one. An error means that there is
// none.
func (t *Trust) Find(workspace string) (TrustedWorkspace, bool, error) {
	list, err := t.List()
	i := slices.IndexFunc(list, func(w TrustedWorkspace) bool { return w.Workspace == workspace })
	if i < 0 {
		return TrustedWorkspace{}, false, err
	}
	return list[i], true, nil
}

// List returns all trusted workspaces in the order in which they were stored.
func (t *Trust) List() ([]TrustedWorkspace, error) {
	file, err := t.file.load()
	return file.Workspaces, err
}

// Add binds a workspace to files and instruction files. It replaces an earlier
// entry.
func (t *Trust) Add(workspace string, files []TrustedFile, instructions ...TrustedFile) error {
	entry := TrustedWorkspace{Workspace: workspace, Files: append([]TrustedFile{}, files...), Instructions: instructions, Created: t.file.now().UTC().Truncate(time.Second)}
	if err := entry.check(); err != nil {
		return fmt.Errorf("trust %q: %w", workspace, err)
	}
	return t.changeWorkspaces(func(list []TrustedWorkspace) []TrustedWorkspace {
		return append(slices.DeleteFunc(list, func(w TrustedWorkspace) bool { return w.Workspace == workspace }), entry)
	})
}

// Remove removes a workspace. It reports whether there was an entry.
func (t *Trust) Remove(workspace string) (bool, error) {
	var found bool
	err := t.changeWorkspaces(func(list []TrustedWorkspace) []TrustedWorkspace {
		kept := slices.DeleteFunc(slices.Clone(list), func(w TrustedWorkspace) bool { return w.Workspace == workspace })
		found = len(kept) < len(list)
		return kept
	})
	return found, err
}

func (t *Trust) changeWorkspaces(edit func([]TrustedWorkspace) []TrustedWorkspace) error {
	return t.file.change(func(file trustFile) trustFile {
		return trustFile{Version: 1, Workspaces: edit(file.Workspaces)}
	})
}

func parseTrust(text []byte) (trustFile, error) {
	var file trustFile
	err := state.Decode(text, &file)
	if err != nil {
		return file, err
	}
	if file.Version != 1 {
		return file, fmt.Errorf("version is %d, must be 1", file.Version)
	}
	seen := map[string]bool{}
	for _, w := range file.Workspaces {
		if err := w.check(); err != nil {
			return file, err
		}
		if seen[w.Workspace] {
			return file, fmt.Errorf("workspace %q is there twice", w.Workspace)
		}
		seen[w.Workspace] = true
	}
	return file, nil
}

var hexSHA256 = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9a-f]{64}$`)
})

func (t TrustedWorkspace) check() error {
	if !filepath.IsAbs(t.Workspace) {
		return errors.New("the workspace is no absolute path")
	}
	if t.Files == nil {
		return errors.New("the list of files is missing")
	}
	for _, list := range [][]TrustedFile{t.Files, t.Instructions} {
		for i, f := range list {
			if f.Path == "" || !hexSHA256().MatchString(f.SHA256) || i > 0 && f.Path <= list[i-1].Path {
				return errors.New("a file has no path or hash, or they are not in order")
			}
		}
	}
	return nil
}
