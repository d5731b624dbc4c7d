package spawn

import (
	"bytes"
	"os"
)

// oomScore makes commands the first that the kernel kills when the container's
// memory runs out. They would inherit the guest's own score, and if a file
// system in memory is full, the guest can be the largest process. A score can
// be raised without a capability, and lowered again to the old value. The zero
// value does nothing.
type oomScore struct {
	file *os.File
	own  []byte
}

// highestScore is OOM_SCORE_ADJ_MAX of Linux (include/uapi/linux/oom.h).
var highestScore = []byte("1000")

// ownOOMScore is the file of this process's score.
const ownOOMScore = "/proc/self/oom_score_adj"

// openOOMScore opens the file of a score. It returns the zero value where the
// kernel does not let it.
func openOOMScore(file string) oomScore {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return oomScore{}
	}
	own := make([]byte, 16)
	n, _ := f.ReadAt(own, 0)
	o := oomScore{file: f, own: bytes.TrimSpace(own[:n])}
	if n == 0 || !o.setScore(highestScore) || !o.setScore(o.own) {
		_ = f.Close()
		return oomScore{}
	}
	return o
}

func (o oomScore) setScore(score []byte) bool {
	_, err := o.file.WriteAt(score, 0)
	return err == nil
}

// raiseScore raises the guest's score, which the next child inherits. Call restoreScore then.
func (o oomScore) raiseScore() {
	if o.file != nil {
		o.setScore(highestScore)
	}
}

// restoreScore undoes raiseScore.
func (o oomScore) restoreScore() {
	if o.file != nil {
		o.setScore(o.own)
	}
}
