// A multi-call binary with the programs that the suites expect in their images and that Debian's busybox does not have.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	var err error
	switch name := filepath.Base(strings.Fields(os.Args[0])[0]); strings.TrimSuffix(name, ":") {
	case "nginx":
		err = nginx()
	case "httpd":
		err = serve("httpd", ":80")
	case "nnp":
		fmt.Printf("Effective uid: %d\n", os.Geteuid())
	case "pgrep":
		err = pgrep(os.Args[1:])
	case "ipcs":
		err = sharedMemory(os.Args[1:])
	case "nmeter":
		// `nmeter -d0 %3t | head -n 1`
		fmt.Println(time.Now().UTC().Format("15:04:05.000"))
	case "pause", "consumer":
		wait()
	case "findmnt":
		err = findmnt(os.Args[1:])
	case "stress":
		err = stress(os.Args[1:])
	default:
		err = fmt.Errorf("unknown program %q", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// nginx imitates the real one: a master process with that title, a pid file, and one page.
func nginx() error {
	const title = "nginx: master process nginx -g daemon off;"
	if os.Args[0] != title {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		return syscall.Exec(self, []string{title}, os.Environ())
	}
	port := "80"
	if text, err := os.ReadFile("/etc/nginx/port"); err == nil {
		port = strings.TrimSpace(string(text))
	}
	if err := os.MkdirAll("/var/run", 0o755); err != nil {
		return err
	}
	if err := os.WriteFile("/var/run/nginx.pid", []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		return err
	}
	return serve("nginx", ":"+port)
}

func serve(name, address string) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGINT)
	go func() {
		<-signals
		os.Exit(0)
	}()
	log.Printf("%s: listening on %s", name, address)
	return http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s: %s %s", name, r.Method, r.URL)
		fmt.Fprintf(w, "<html><body><h1>%s works</h1></body></html>\n", name)
	}))
}

// pgrep prints the pids of the processes whose name contains the word.
func pgrep(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: pgrep WORD")
	}
	found := false
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range names {
		text, err := os.ReadFile(file)
		pid := filepath.Base(filepath.Dir(file))
		if err == nil && strings.Contains(string(text), args[0]) && pid != strconv.Itoa(os.Getpid()) {
			fmt.Println(pid)
			found = true
		}
	}
	if !found {
		os.Exit(1)
	}
	return nil
}

// sharedMemory is `ipcs -m`.
func sharedMemory(args []string) error {
	if len(args) != 1 || args[0] != "-m" {
		return fmt.Errorf("usage: ipcs -m")
	}
	text, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return err
	}
	fmt.Println("key        shmid      owner      perms      bytes")
	for _, line := range strings.Split(string(text), "\n")[1:] {
		if f := strings.Fields(line); len(f) > 7 {
			fmt.Printf("%-10s %-10s %-10s %-10s %-10s\n", f[0], f[1], f[7], f[2], f[3])
		}
	}
	return nil
}

// findmnt is `findmnt -no TARGET,PROPAGATION DIRECTORY`.
func findmnt(args []string) error {
	if len(args) != 3 || args[0] != "-no" || args[1] != "TARGET,PROPAGATION" {
		return fmt.Errorf("usage: findmnt -no TARGET,PROPAGATION DIRECTORY")
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	found := false
	for _, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) < 7 || f[4] != args[2] {
			continue
		}
		// The optional fields, up to a dash: proc_pid_mountinfo(5).
		propagation := []string{}
		for _, field := range f[6:] {
			if strings.HasPrefix(field, "shared:") {
				propagation = append(propagation, "shared")
			} else if strings.HasPrefix(field, "master:") {
				propagation = append(propagation, "slave")
			} else if field == "-" {
				break
			}
		}
		if len(propagation) == 0 {
			propagation = []string{"private"}
		}
		fmt.Println(f[4], strings.Join(propagation, ","))
		found = true
	}
	if !found {
		os.Exit(1)
	}
	return nil
}

// stress is `stress -m 1 --vm-bytes 100M --vm-hang 0 -t SECONDS`: it allocates the memory and holds it for that time.
func stress(args []string) error {
	if len(args) != 8 || args[3] != "100M" || args[6] != "-t" {
		return fmt.Errorf("usage: stress -m 1 --vm-bytes 100M --vm-hang 0 -t SECONDS")
	}
	seconds, err := strconv.Atoi(args[7])
	if err != nil {
		return err
	}
	held := make([]byte, 101<<20)
	for i := range held {
		held[i] = byte(i)
	}
	time.Sleep(time.Duration(seconds) * time.Second)
	runtime.KeepAlive(held)
	return nil
}

func wait() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	<-signals
}
