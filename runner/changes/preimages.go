package changes

import (
	"bytes"
	"context"
	"strings"
	"sync"

	"github.com/aymanbagabas/go-udiff"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/workspace"
)

const maxPreimages = 64 << 20

// Preimages keeps files that WRITE tools changed, as they were when the session began, on disk.
// It is safe for concurrent use.
type Preimages struct {
	mu      sync.Mutex
	kept    map[string]preimage
	scratch *scratch
	dir     string // where scratch is made
}

// NewPreimages returns an empty collection that keeps its content below dir.
func NewPreimages(dir string) *Preimages { return &Preimages{dir: dir} }

type preimage struct {
	content extent
	absent  bool
	// known reports that content is the file at the session's start.
	known bool
}

// Note keeps a file before the first change of its path. fresh reports that the file was still
// as the session found it.
func (p *Preimages) Note(c workspace.Change, fresh bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kept == nil {
		p.kept = map[string]preimage{}
	}
	if _, ok := p.kept[c.Path]; ok {
		return
	}
	image := preimage{absent: c.Created, known: fresh && (c.Created || c.HasBefore)}
	if image.known && !c.Created {
		image.content, image.known = p.keepContent(c.Before)
	}
	p.kept[c.Path] = image
}

// keepContent keeps content on disk, within the bound. The caller holds mu.
func (p *Preimages) keepContent(content []byte) (at extent, ok bool) {
	var err error
	if p.scratch == nil {
		p.scratch, err = newScratch(p.dir)
	}
	if err != nil || p.scratch.size+int64(len(content)) > maxPreimages {
		return extent{}, false
	}
	at, err = p.scratch.appendText(content)
	return at, err == nil
}

// Before returns the content of a file when the session began, if a change revealed it. absent
// reports that the file did not exist.
func (p *Preimages) Before(name string) (content []byte, absent, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	image := p.kept[name]
	if !image.known || image.absent {
		return nil, image.absent, image.known
	}
	content, err := p.scratch.readExtent(image.content)
	return content, false, err == nil
}

// Close removes all that is kept.
func (p *Preimages) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.scratch == nil {
		return nil
	}
	return p.scratch.close()
}

// diffFile returns the unified diff of a changed file since the session's start, with the numbers
// of inserted and deleted lines. ok is false if there is none. For files that no WRITE tool
// changed, before has the old content.
func (p *Preimages) diffFile(ctx context.Context, r workspace.View, c record.Changed, before func(path, change string) ([]byte, bool, bool)) (text string, added, removed int, ok bool) {
	content, absent, known := p.Before(c.Path)
	if !known {
		content, absent, known = before(c.Path, c.Change)
	}
	if !known || absent != (c.Change == "added") {
		return "", 0, 0, false
	}
	var now []byte
	if c.Change != "deleted" {
		info, err := r.Lstat(ctx, c.Path)
		if err != nil || info.Type != workspace.TypeFile {
			return "", 0, 0, false
		}
		f, err := r.ReadFile(ctx, c.Path, 0, workspace.MaxPreimageBytes)
		if err != nil || f.Truncated {
			return "", 0, 0, false
		}
		now = f.Data
	}
	if isBinary(content) || isBinary(now) {
		return "", 0, 0, false
	}
	text = unifiedDiff(c, string(content), string(now))
	header := 2
	for line := range strings.Lines(text) {
		switch {
		case header > 0:
			header--
		case strings.HasPrefix(line, "+"):
			added++
		case strings.HasPrefix(line, "-"):
			removed++
		}
	}
	return text, added, removed, true
}

// unifiedDiff returns a unified diff with git's names, so that patch -p1 applies it.
func unifiedDiff(c record.Changed, before, after string) string {
	from, to := "a/"+c.Path, "b/"+c.Path
	switch c.Change {
	case "added":
		from = "/dev/null"
	case "deleted":
		to = "/dev/null"
	}
	return udiff.Unified(from, to, before, after)
}

// isBinary implements git's rule: a NUL byte among the first 8000.
func isBinary(content []byte) bool {
	return bytes.IndexByte(content[:min(len(content), 8000)], 0) >= 0
}
