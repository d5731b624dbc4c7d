package kill

import "sync"

// Shims knows the subreapers of the running commands. It is safe for concurrent
// use.
type Shims struct {
	// starting is held for reading while a shim starts and is not yet known,
	// and for writing while processes are assigned to commands: an unknown shim
	// would be taken for a stray.
	starting sync.RWMutex
	mu       sync.Mutex
	pids     map[int]struct{}
}

// NewShims returns an empty Shims.
func NewShims() *Shims { return &Shims{pids: map[int]struct{}{}} }

// Add records that pid is a command's subreaper.
func (s *Shims) Add(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pids[pid] = struct{}{}
}

// Start runs start, which starts a subreaper, and adds it.
func (s *Shims) Start(start func() (pid int, err error)) error {
	s.starting.RLock()
	defer s.starting.RUnlock()
	pid, err := start()
	if err == nil {
		s.Add(pid)
	}
	return err
}

// Remove removes a subreaper.
func (s *Shims) Remove(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pids, pid)
}

func (s *Shims) has(pid int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.pids[pid]
	return ok
}

// visitDescendants visits the living descendants of m's shim, without the shim,
// and the strays: processes that the guest inherited because their shim was
// killed. Their command is unknown, so the first command that ends kills them
// too.
func (s *Shims) visitDescendants(proc string, self int, m Mark, visit func(*process)) error {
	s.starting.Lock()
	defer s.starting.Unlock()
	all := map[int]process{}
	err := scanProcesses(proc, self, func(p *process) {
		c := *p
		c.groups = nil
		all[p.pid] = c
	})
	if err != nil {
		return err
	}
	for pid, p := range all {
		if p.dead || s.has(pid) {
			continue
		}
		if s.ownerOf(all, self, pid) == m.Shim || s.ownerOf(all, self, pid) == self {
			visit(&p)
		}
	}
	return nil
}

// ownerOf walks up from pid to the first shim or the guest. A chain that
// changed during the scan ends at a missing pid; the next pass sees it whole.
func (s *Shims) ownerOf(all map[int]process, self, pid int) int {
	for range all {
		parent := all[pid].parent
		if parent == self || s.has(parent) {
			return parent
		}
		if _, ok := all[parent]; !ok {
			return 0
		}
		pid = parent
	}
	return 0
}
