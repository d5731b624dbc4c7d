package kill

// Usage is the use of a command's processes at a moment.
type Usage struct {
	// Tasks is the number of processes and threads, Memory what they have in memory,
	// in bytes, without what they share with files.
	Tasks  int
	Memory int64
}

// Usages returns the usage of commands, by one scan for all of them.
func (k *Killer) Usages(marks []Mark) map[Mark]Usage {
	all := map[Mark]Usage{}
	add := func(m Mark, p *process) {
		u := all[m]
		u.Tasks += p.threads
		u.Memory += p.memory
		all[m] = u
	}
	if k.method == MethodSubreaper {
		for _, m := range marks {
			_ = k.visitProcesses(m, func(p *process) { add(m, p) }) // the next scan may succeed
		}
		return all
	}
	k.scanning.Lock()
	defer k.scanning.Unlock()
	_ = scanProcesses(k.proc, k.self, func(p *process) {
		if p.dead {
			return
		}
		for _, m := range marks {
			if p.hasGroup(m.Group) {
				add(m, p)
				return
			}
		}
	})
	return all
}
