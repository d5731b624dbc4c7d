// Command shell is the /bin/sh of the root filesystems that tests make: a
// static program that says what it sees of it. "sh -c env" shows its
// environment, "sh -c volume" what is at /data, "sh -c names" who answers
// name lookups, "sh -c below" what is mounted at /opt/below, "sh -c scar" changes /opt/open for as long as it lives.
package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

func main() {
	switch os.Args[len(os.Args)-1] {
	case "env":
		fmt.Println(strings.Join(os.Environ(), "\n"))
	case "volume":
		var fs syscall.Statfs_t
		err := syscall.Statfs("/data", &fs)
		if err == nil {
			err = os.WriteFile("/data/file", []byte("x"), 0o644)
		}
		fmt.Printf("/data: %d bytes, %v\n", int64(fs.Blocks)*fs.Bsize, err)
	case "names":
		text, _ := os.ReadFile("/etc/resolv.conf")
		fmt.Print(string(text))
	case "below":
		text, _ := os.ReadFile("/opt/below/marker")
		fmt.Printf("%s, %v\n", text, os.WriteFile("/opt/below/marker", nil, 0o644))
	case "scar":
		for i := 0; ; i++ {
			dir := fmt.Sprintf("/opt/open/%d/closed", i)
			_, _, _ = os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/file", []byte("x"), 0o600), os.Chmod(dir, 0)
			if i == 100 {
				os.WriteFile("/workspace/begun", nil, 0o644)
			}
			time.Sleep(time.Millisecond)
		}
	default:
		printView()
	}
}

func printView() {
	marker, err := os.ReadFile("/marker")
	fmt.Printf("%s%v\n", marker, err)
	_, err = os.Stat("/home/somebody")
	fmt.Println("hidden:", os.IsNotExist(err))
	fmt.Println("read-only:", os.WriteFile("/marker", nil, 0o644) != nil && os.Mkdir("/made", 0o755) != nil)
	fmt.Println("workspace:", os.WriteFile("/workspace/file", []byte("x"), 0o644))
}
