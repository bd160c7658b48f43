// A device plugin of the kubelet (v1beta1) that hands out one device file of the node, as is or
// wrongly: device-plugin RESOURCE COUNT [HOST_PATH CONTAINER_PATH PERMISSIONS]
// Without the last three it promises devices and exposes none.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
	exposed []*api.DeviceSpec
}

func (*plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, asked *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for range asked.ContainerRequests {
		one := &api.ContainerAllocateResponse{Devices: p.exposed}
		answer.ContainerResponses = append(answer.ContainerResponses, one)
	}
	return answer, nil
}

func main() {
	resource := os.Args[1]
	count, err := strconv.Atoi(os.Args[2])
	check(err)
	served := &plugin{}
	for number := range count {
		device := &api.Device{ID: strconv.Itoa(number), Health: api.Healthy}
		served.devices = append(served.devices, device)
	}
	if how := os.Args[3:]; len(how) == 3 {
		spec := &api.DeviceSpec{HostPath: how[0], ContainerPath: how[1], Permissions: how[2]}
		served.exposed = append(served.exposed, spec)
	}
	socket := strings.ReplaceAll(resource, "/", "_") + ".sock"
	listener, err := net.Listen("unix", filepath.Join(api.DevicePluginPath, socket))
	check(err)
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, served)
	go func() { check(server.Serve(listener)) }()
	kubelet, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(err)
	request := &api.RegisterRequest{Version: api.Version, Endpoint: socket, ResourceName: resource}
	_, err = api.NewRegistrationClient(kubelet).Register(context.Background(), request)
	check(err)
	select {}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
