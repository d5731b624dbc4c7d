package batchui

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/runner/batch"
)

// ParseShard parses a shard such as 1/3. For "", it returns this process's part of a
// job according to the environment: SLURM_ARRAY_TASK_ID with SLURM_ARRAY_TASK_MIN and
// SLURM_ARRAY_TASK_COUNT, or JOB_COMPLETION_INDEX with JOB_COMPLETIONS. Outside a job,
// it returns the zero Shard.
func ParseShard(text string, getenv func(name string) string) (batch.Shard, error) {
	if text != "" {
		index, count, _ := strings.Cut(text, "/")
		s, ok := newShard(index, "1", count)
		if !ok {
			return s, fmt.Errorf("invalid shard %q: want I/N with I from 1 to N, such as 1/3", text)
		}
		return s, nil
	}
	for _, job := range []struct{ index, first, count string }{
		{"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_COUNT"}, {"JOB_COMPLETION_INDEX", "", "JOB_COMPLETIONS"},
	} {
		index := getenv(job.index)
		if index == "" {
			continue
		}
		s, ok := newShard(index, cmp.Or(getenv(job.first), "0"), getenv(job.count))
		if !ok {
			return s, fmt.Errorf("the environment has %s=%s, and no %s with which it is a shard: name it as I/N", job.index, index, job.count)
		}
		return s, nil
	}
	return batch.Shard{}, nil
}

// newShard returns a shard whose index counts from first, and whether it is valid.
func newShard(index, first, count string) (batch.Shard, bool) {
	i, err := strconv.Atoi(index)
	base, baseErr := strconv.Atoi(first)
	n, countErr := strconv.Atoi(count)
	s := batch.Shard{Index: i - base + 1, Count: n}
	return s, err == nil && baseErr == nil && countErr == nil && n > 0 && s.Check() == nil
}
