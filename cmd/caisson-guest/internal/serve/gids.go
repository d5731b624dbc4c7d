package serve

import "sync"

// gids assigns supplementary groups that mark commands. It goes round, so that
// a group is reused as late as possible.
type gids struct {
	mu          sync.Mutex
	base, count uint32
	next        uint32
	used        map[uint32]struct{}
}

func newGIDs(base, count uint32) *gids {
	return &gids{base: base, count: count, used: map[uint32]struct{}{}}
}

// acquire returns a group that no command has; ok is false if all are in use.
func (g *gids) acquire() (gid uint32, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for range g.count {
		gid = g.base + g.next
		g.next = (g.next + 1) % g.count
		if _, used := g.used[gid]; !used {
			g.used[gid] = struct{}{}
			return gid, true
		}
	}
	return 0, false
}

// release makes a group available again. It must not be called for a group
// whose processes could not all be killed.
func (g *gids) release(gid uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.used, gid)
}
