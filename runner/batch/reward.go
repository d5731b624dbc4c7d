package batch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner/batch/task"
)

// maxReward bounds a reward file in bytes.
const maxReward = 1 << 20

// maxMagnitude bounds rewards, so that their sums are finite.
const maxMagnitude = 1e100

func isReward(n float64) bool { return math.Abs(n) <= maxMagnitude }

// RewardError says why a verifier left no reward. Its class is [RewardMissing],
// [RewardEmpty] or [RewardUnparsable].
type RewardError struct {
	Class Class
	Cause string
}

func (e *RewardError) Error() string { return e.Cause }

// ReadRewards returns the rewards that a verifier wrote to a directory: the numbers in
// reward.json's object or, without that file, the number in reward.txt. Other values in
// reward.json are ignored. The error is a [RewardError] or one of reading.
func ReadRewards(dir string) (map[string]float64, error) {
	text, err := readReward(filepath.Join(dir, "reward.json"))
	if err == nil {
		return parseRewards(text)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	text, err = readReward(filepath.Join(dir, "reward.txt"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &RewardError{RewardMissing, "the verifier wrote neither reward.json nor reward.txt"}
	}
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !isReward(n) {
		return nil, &RewardError{RewardUnparsable, fmt.Sprintf("reward.txt is %.40q: want a number of at most %g", text, maxMagnitude)}
	}
	return map[string]float64{task.RewardKey: n}, nil
}

// readReward returns the content of a regular, non-empty file.
func readReward(path string) (string, error) {
	name := filepath.Base(path)
	text, err := state.Read(path, maxReward)
	if errors.Is(err, state.ErrDamaged) {
		return "", &RewardError{RewardUnparsable, name + " is no file of at most 1 MiB"}
	}
	if err == nil && strings.TrimSpace(string(text)) == "" {
		err = &RewardError{RewardEmpty, name + " is empty"}
	}
	return string(text), err
}

func parseRewards(text string) (map[string]float64, error) {
	values, err := parseObject(text)
	if err != nil {
		return nil, &RewardError{RewardUnparsable, fmt.Sprintf("reward.json is %.40q: want an object of numbers: %v", text, err)}
	}
	if r, ok := values[task.RewardKey]; ok {
		if _, ok := r.(float64); !ok {
			return nil, &RewardError{RewardUnparsable, fmt.Sprintf("%s in reward.json is no number", task.RewardKey)}
		}
	}
	rewards := map[string]float64{}
	for key, v := range values {
		n, ok := v.(float64)
		if ok && !isReward(n) {
			return nil, &RewardError{RewardUnparsable, fmt.Sprintf("%.40q in reward.json is %g: want a number of at most %g", key, n, maxMagnitude)}
		}
		if ok {
			rewards[key] = n
		}
	}
	if len(rewards) == 0 {
		return nil, &RewardError{RewardUnparsable, "reward.json has no numbers"}
	}
	return rewards, nil
}

// parseObject parses a JSON object, in which no key may occur twice: one of the values would be
// ignored.
func parseObject(text string) (map[string]any, error) {
	d := json.NewDecoder(strings.NewReader(text))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.New("it is no object")
	}
	values := map[string]any{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, _ := name.(string) // the decoder accepts nothing else
		if _, twice := values[key]; twice {
			return nil, fmt.Errorf("the key %.40q occurs twice", key)
		}
		var v any
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		values[key] = v
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the object")
	}
	return values, nil
}

// mainReward returns the reward that decides: the one called reward, or else the mean
// of all.
func mainReward(rewards map[string]float64) float64 {
	if r, ok := rewards[task.RewardKey]; ok {
		return r
	}
	sum := 0.0
	for _, r := range rewards {
		sum += r
	}
	return sum / float64(len(rewards))
}

func isPass(rewards map[string]float64) bool { return rewards != nil && mainReward(rewards) >= 1 }

// combineRewards returns a task's rewards from the steps that began, or nil if none has
// any. planned is the number of all steps. Steps without rewards, or that did not
// begin, count 0 for every key.
func combineRewards(s task.Strategy, steps []StepResult, planned int) map[string]float64 {
	var combined map[string]float64
	for i, step := range steps {
		for key, r := range step.Rewards {
			if combined == nil {
				combined = map[string]float64{}
			}
			if s == task.Final && i+1 < planned {
				r = 0
			}
			combined[key] += r
		}
	}
	if s != task.Final {
		for key := range combined {
			combined[key] /= float64(planned)
		}
	}
	return combined
}

// meetsMinimum reports whether rewards reach all bounds. Missing ones don't.
func meetsMinimum(rewards, bounds map[string]float64) bool {
	for key, bound := range bounds {
		if r, ok := rewards[key]; !ok || r < bound {
			return false
		}
	}
	return true
}
