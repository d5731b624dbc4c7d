package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/caisson-run/caisson/sandbox"
)

// Noted is what a cleanup list says, for a list.
type Summary struct {
	Session, Backend string
	// Dir is the session's folder, relative to the state folder.
	Dir              string
	Image, Workspace string
	Began            time.Time
	Owner            Identity
	GivenUp          bool
	Entries          []Entry
}

// List reads the cleanup lists of one backend and changes nothing. A cleanup list that
// can't be read is in the error; the others are returned all the same.
func ReadLists(stateDir, backend string) ([]Summary, error) {
	root, err := openListDir(stateDir, false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list cleanup lists: %w", err)
	}
	defer root.Close()
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

// Listing is what a list says of it, but for what the engine or runtime knows.
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

// Listed is the owner as a list says it.
func (id Identity) ListedOwner(instance string) sandbox.ListedOwner {
	return sandbox.ListedOwner{PID: id.PID, Start: id.Start, State: id.Fate(instance).String()}
}
