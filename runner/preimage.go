package runner

import (
	"bytes"
	"context"
	"strings"
	"sync"

	"github.com/aymanbagabas/go-udiff"

	"github.com/caisson-run/caisson/tools/workspace"
)

// maxPreimages bounds what is kept of files as they were, all together.
const maxPreimages = 64 << 20

// preimages keeps files as they were when the session began, for those that
// WRITE tools changed. It is safe for concurrent use.
type preimages struct {
	mu    sync.Mutex
	kept  map[string]preimage
	bytes int
}

type preimage struct {
	content []byte
	absent  bool
	// known says that content is the file at the session's start.
	known bool
}

// note keeps what a change says of the file before it, the first time that the
// path is changed. fresh says that the file was still as the session found it.
func (p *preimages) note(c workspace.Change, fresh bool) {
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
		if p.bytes+len(c.Before) > maxPreimages {
			image.known = false
		} else {
			image.content = c.Before
			p.bytes += len(c.Before)
		}
	}
	p.kept[c.Path] = image
}

// diff gives the unified diff of one changed file from the session's start to
// now, with its insertions and deletions; ok is false where there is none.
func (p *preimages) diff(ctx context.Context, r workspace.View, c Changed) (text string, added, removed int, ok bool) {
	p.mu.Lock()
	image := p.kept[c.Path]
	p.mu.Unlock()
	if !image.known || image.absent != (c.Change == "added") {
		return "", 0, 0, false
	}
	var now []byte
	if c.Change != "deleted" {
		f, err := r.ReadFile(ctx, c.Path, 0, workspace.MaxPreimageBytes)
		if err != nil || f.Truncated {
			return "", 0, 0, false
		}
		now = f.Data
	}
	if isBinary(image.content) || isBinary(now) {
		return "", 0, 0, false
	}
	text = unified(c, string(image.content), string(now))
	for line := range strings.Lines(text) {
		switch {
		case strings.HasPrefix(line, "+++") || strings.HasPrefix(line, "---"):
		case strings.HasPrefix(line, "+"):
			added++
		case strings.HasPrefix(line, "-"):
			removed++
		}
	}
	return text, added, removed, true
}

// unified names the files as git does, so that patch -p1 applies it.
func unified(c Changed, before, after string) string {
	from, to := "a/"+c.Path, "b/"+c.Path
	switch c.Change {
	case "added":
		from = "/dev/null"
	case "deleted":
		to = "/dev/null"
	}
	return udiff.Unified(from, to, before, after)
}

// isBinary is git's rule: a NUL byte among the first 8000.
func isBinary(content []byte) bool {
	return bytes.IndexByte(content[:min(len(content), 8000)], 0) >= 0
}
