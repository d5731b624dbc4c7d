package oci

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

// migrationInterval is less than a grace period of the kernel (see
// expectMigration).
const migrationInterval = 2 * time.Millisecond

// expectMigration shortens the time in which the runtime moves processes into the
// container's cgroups. The first move after a pause waits for a grace period of
// RCU, 5 to 12 ms (percpu_down_write of cgroup_threadgroup_rwsem); those within
// a grace period of the previous one don't wait. So it moves this process to the
// cgroup that it is already in, until the container has a process or ctx ends.
func expectMigration(ctx context.Context, p cgroupPlan) {
	if p.own == "" {
		return
	}
	procs, err := os.OpenFile(filepath.Join(p.own, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer func() { _ = procs.Close() }()
	for readText(p.joined, "cgroup.procs") == "" {
		if _, err := procs.WriteString("0"); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(migrationInterval):
		}
	}
}
