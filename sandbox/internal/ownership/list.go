package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/caisson-run/caisson/sandbox"
)

// Summary is the content of a cleanup list.
type Summary struct {
	Session, Backend string
	// Dir is the session's directory, relative to the state directory.
	Dir              string
	Image, Workspace string
	Began            time.Time
	Owner            Identity
	GivenUp          bool
	Entries          []Entry
}

// ReadLists returns the content of the cleanup lists of one backend. It changes
// nothing. Its error names the lists that can't be read; the others are
// returned all the same.
func ReadLists(stateDir, backend string) ([]Summary, error) {
	root, err := openListDir(stateDir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list cleanup lists: %w", err)
	}
	defer func() { _ = root.Close() }()
	names, err := listFileNames(root)
	if err != nil {
		return nil, fmt.Errorf("list cleanup lists: %w", err)
	}
	var found []Summary
	var errs []error
	for _, name := range names {
		data, err := readListFile(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // its session ended meanwhile
		}
		var doc document
		if err == nil {
			doc, err = parseList(name, data)
		}
		if err != nil {
			if !errors.Is(err, errOtherVersion) || doc.Backend == backend {
				errs = append(errs, fmt.Errorf("read cleanup list %s: %w", name, err))
			}
			continue
		}
		if doc.Backend == backend {
			found = append(found, doc.summary())
		}
	}
	return found, errors.Join(errs...)
}

func (d document) summary() Summary {
	n := Summary{
		Session: d.Session, Backend: d.Backend, Dir: d.Dir, Image: d.Image, Workspace: d.Workspace, Began: d.Began,
		Owner: d.Owner, GivenUp: d.Abandoned,
	}
	for _, r := range d.Entries {
		n.Entries = append(n.Entries, r.Entry)
	}
	return n
}

// Listing returns the listing of the sandbox, without what the engine or
// runtime knows.
func (n Summary) Listing(instance string) sandbox.Listing {
	l := sandbox.Listing{
		Session: n.Session, Backend: n.Backend, Image: n.Image, Workspace: n.Workspace, Since: n.Began,
		State: sandbox.ListedUnknown, Owner: n.Owner.ListedOwner(instance), GivenUp: n.GivenUp,
	}
	for _, e := range n.Entries {
		if e.Kind == KindContainer {
			l.Container = e.Name
		}
	}
	return l
}

// ListedOwner returns the owner for a listing.
func (id Identity) ListedOwner(instance string) sandbox.ListedOwner {
	return sandbox.ListedOwner{PID: id.PID, Start: id.Start, State: id.Fate(instance).String()}
}
