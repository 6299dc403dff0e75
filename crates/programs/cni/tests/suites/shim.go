// Takes the place of a Go plugin's commands in its own test suite: each starts the program of that name
// in $UNDER_TEST, as a runtime does, and hands back what it says.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

const plugin = "PLUGIN"

func cmdAdd(args *skel.CmdArgs) error    { return start("ADD", args) }
func cmdDel(args *skel.CmdArgs) error    { return start("DEL", args) }
func cmdCheck(args *skel.CmdArgs) error  { return start("CHECK", args) }
func cmdStatus(args *skel.CmdArgs) error { return start("STATUS", args) }

func start(command string, args *skel.CmdArgs) error {
	program := exec.Command(filepath.Join(os.Getenv("UNDER_TEST"), plugin))
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "CNI_") {
			program.Env = append(program.Env, variable)
		}
	}
	program.Env = append(program.Env,
		"CNI_COMMAND="+command,
		"CNI_CONTAINERID="+args.ContainerID,
		"CNI_NETNS="+args.Netns,
		"CNI_IFNAME="+args.IfName,
		"CNI_ARGS="+args.Args,
		"CNI_PATH="+os.Getenv("PATH"),
		"CNI_NETNS_OVERRIDE=1")
	program.Stdin = bytes.NewReader(args.StdinData)
	var said, complained bytes.Buffer
	program.Stdout, program.Stderr = &said, &complained
	if failure := program.Run(); failure != nil {
		told := types.Error{}
		if json.Unmarshal(said.Bytes(), &told) == nil && told.Code != 0 {
			return &told
		}
		return fmt.Errorf("%v: %s %s", failure, said.String(), complained.String())
	}
	_, err := os.Stdout.Write(said.Bytes())
	return err
}
